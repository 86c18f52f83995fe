# A Shoal device that uses models and trains none, without PyTorch: docker build -f deploy/docker/infer.Dockerfile -t shoal-infer .
#
# ONNX Runtime, numpy and gRPC come as wheels for x86-64 and aarch64, so no compiler is needed and none is in the image.
# Look at its size with: docker image inspect --format '{{.Size}}' shoal-infer.
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY shoal shoal
COPY fedserver fedserver
COPY fedclient fedclient
# Neither pip nor the tests of packages are needed to run. The wheel of ONNX Runtime has its library twice, and Python
# uses the other one.
RUN python -m venv --without-pip /opt/shoal \
 && pip --python /opt/shoal/bin/python install --no-cache-dir --only-binary=:all: --no-binary=shoal-fed --no-compile \
      --constraint requirements.lock ".[infer]" \
 && find /opt/shoal -type d -name tests -prune -exec rm -rf {} + \
 && rm -f /opt/shoal/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.* \
 && /opt/shoal/bin/python -B -c 'from fedclient.light.runtime import try_runtime; try_runtime()'

FROM ${BASE}
RUN useradd --system --uid 7412 --home-dir /var/lib/shoal-device shoal-device \
 && install -d -o shoal-device -g shoal-device -m 0700 /var/lib/shoal-device
COPY --from=build /opt/shoal /opt/shoal
ENV PATH=/opt/shoal/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER shoal-device
VOLUME /var/lib/shoal-device
STOPSIGNAL SIGTERM
ENTRYPOINT ["fedclient"]
CMD ["run", "--serve", "unix:/var/lib/shoal-device/predictions.sock", "--config", "/etc/shoal/device.yaml", "--state", "/var/lib/shoal-device"]
