# A Shoal device: docker build -f deploy/docker/client.Dockerfile -t shoal-client .
#
# PyTorch from the default index includes the CUDA libraries, some gigabytes. For a device without a GPU, give
# PyTorch's own index of CPU builds: --build-arg PIP_EXTRA_INDEX_URL=... Then the versions are those of
# requirements.lock, but no hashes are checked: the lock has those of the default index only.
#
# The base is named by its tag, so that a rebuild gets its security fixes; --build-arg BASE=python@sha256:... fixes it.
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
ARG PIP_EXTRA_INDEX_URL=
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY requirements requirements
COPY proto proto
COPY shoal shoal
COPY fedserver fedserver
COPY fedclient fedclient
RUN python -m venv /opt/shoal \
 && if [ -n "$PIP_EXTRA_INDEX_URL" ]; \
    then /opt/shoal/bin/pip install --no-cache-dir --constraint requirements.lock ".[client,dp]"; \
    else /opt/shoal/bin/pip install --no-cache-dir --require-hashes -r requirements/build.lock -r requirements/client.lock \
      && /opt/shoal/bin/pip install --no-cache-dir --no-deps --no-build-isolation .; \
    fi

FROM ${BASE}
RUN useradd --system --uid 7412 --home-dir /var/lib/shoal-device shoal-device \
 && install -d -o shoal-device -g shoal-device -m 0700 /var/lib/shoal-device
COPY --from=build /opt/shoal /opt/shoal
ENV PATH=/opt/shoal/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER shoal-device
VOLUME /var/lib/shoal-device
STOPSIGNAL SIGTERM
ENTRYPOINT ["fedclient"]
CMD ["run", "--config", "/etc/shoal/device.yaml", "--state", "/var/lib/shoal-device"]
