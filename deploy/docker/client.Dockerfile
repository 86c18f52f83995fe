# A Shoal device: docker build -f deploy/docker/client.Dockerfile -t shoal-client .
#
# PyTorch from the default index includes the CUDA libraries, some gigabytes. For a device without a GPU, give
# PyTorch's own index of CPU builds: --build-arg PIP_EXTRA_INDEX_URL=... Then all but PyTorch is installed by hash.
#
# The base is named by its tag, so that a rebuild gets its security fixes; --build-arg BASE=python@sha256:... fixes it.
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
ARG PIP_EXTRA_INDEX_URL=
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY proto proto
COPY shoal shoal
COPY fedserver fedserver
COPY fedclient fedclient
RUN python -m venv /opt/shoal && lock=requirements/client.lock \
 && if [ -n "$PIP_EXTRA_INDEX_URL" ]; then \
      /opt/shoal/bin/pip install --no-cache-dir --no-deps "$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' "$lock")" \
      && awk '/^[a-z]/ { keep = !/^(torch|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)==/ } keep' "$lock" > without-torch.lock \
      && lock=without-torch.lock; \
    fi \
 && /opt/shoal/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements/build.lock -r "$lock" \
 && /opt/shoal/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/shoal/bin/pip check

FROM ${BASE}
RUN useradd --system --uid 7412 --home-dir /var/lib/shoal-device shoal-device \
 && install -d -o shoal-device -g shoal-device -m 0700 /var/lib/shoal-device
COPY --from=build /opt/shoal /opt/shoal
ENV PATH=/opt/shoal/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 7412
VOLUME /var/lib/shoal-device
STOPSIGNAL SIGTERM
ENTRYPOINT ["fedclient"]
CMD ["run", "--config", "/etc/shoal/device.yaml", "--state", "/var/lib/shoal-device"]
