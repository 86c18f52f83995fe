# A Shoal device: docker build -f deploy/docker/client.Dockerfile -t shoal-client .
#
# PyTorch from the default index includes the CUDA libraries, some gigabytes. For a device without a GPU, give
# PyTorch's own index of CPU builds: --build-arg PIP_EXTRA_INDEX_URL=...
FROM python:3.11-slim AS build
ARG PIP_EXTRA_INDEX_URL=
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY shoal shoal
COPY fedserver fedserver
COPY fedclient fedclient
RUN python -m venv /opt/shoal \
 && /opt/shoal/bin/pip install --no-cache-dir --constraint requirements.lock ".[client]"

FROM python:3.11-slim
RUN useradd --system --uid 7412 --home-dir /var/lib/shoal-device shoal-device \
 && install -d -o shoal-device -g shoal-device -m 0700 /var/lib/shoal-device
COPY --from=build /opt/shoal /opt/shoal
ENV PATH=/opt/shoal/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER shoal-device
VOLUME /var/lib/shoal-device
STOPSIGNAL SIGTERM
ENTRYPOINT ["fedclient"]
CMD ["run", "--config", "/etc/shoal/device.yaml", "--state", "/var/lib/shoal-device"]
