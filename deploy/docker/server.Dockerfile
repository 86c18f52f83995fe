# The Shoal server: docker build -f deploy/docker/server.Dockerfile -t shoal-server .
#
# The base is named by its tag, so that a rebuild gets its security fixes; --build-arg BASE=python@sha256:... fixes it.
# Every package is installed by the hash that requirements/server.lock has of it.
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY proto proto
COPY shoal shoal
COPY fedserver fedserver
COPY fedclient fedclient
RUN python -m venv /opt/shoal \
 && /opt/shoal/bin/pip install --no-cache-dir --require-hashes -r requirements/build.lock -r requirements/server.lock \
 && /opt/shoal/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM ${BASE}
RUN useradd --system --uid 7411 --home-dir /var/lib/shoal shoal \
 && install -d -o shoal -g shoal -m 0700 /var/lib/shoal /srv/shoal
COPY --from=build /opt/shoal /opt/shoal
ENV PATH=/opt/shoal/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 7411
VOLUME /var/lib/shoal
EXPOSE 50051 50052
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
    CMD ["fedserver", "status", "--state", "/var/lib/shoal"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["fedserver"]
CMD ["up", "--state", "/var/lib/shoal"]
