# A Shoal device that uses models and trains none, without PyTorch: docker build -f deploy/docker/infer.Dockerfile -t shoal-infer .
#
# ONNX Runtime, numpy and gRPC come as wheels for x86-64 and aarch64, so that no compiler is needed. The image has Python,
# this environment and the libraries that they load, and nothing else: no shell, no package manager.
# Look at its size with: docker image inspect --format '{{.Size}}' shoal-infer.
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY proto proto
COPY shoal shoal
COPY fedserver fedserver
COPY fedclient fedclient
COPY deploy/docker/least-root ./
# The tests of packages are not needed to run. The wheel of ONNX Runtime has its library twice, and Python uses the other
# one. The last line writes the bytecode of all that is used: without it, every start would compile it again.
RUN python -m venv /tools && python -m venv --without-pip /opt/shoal \
 && /tools/bin/pip --python /opt/shoal/bin/python install --no-cache-dir --only-binary=:all: --no-compile \
      --require-hashes -r requirements/infer.lock \
 && /tools/bin/pip install --no-cache-dir --require-hashes -r requirements/build.lock \
 && /tools/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel . \
 && /tools/bin/pip --python /opt/shoal/bin/python install --no-cache-dir --no-compile --no-deps /wheel/*.whl \
 && find /opt/shoal -type d -name tests -prune -exec rm -rf {} + \
 && rm -f /opt/shoal/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.* \
 && env --chdir=/ /opt/shoal/bin/python -m fedclient.light.ready
RUN ./least-root /opt/shoal /image \
 && install -d -o 7412 -g 7412 -m 0700 /image/var/lib/shoal-device \
 && echo 'shoal-device:x:7412:7412::/var/lib/shoal-device:/none' > /image/etc/passwd \
 && echo 'shoal-device:x:7412:' > /image/etc/group

FROM scratch
COPY --from=build /image /
ENV PATH=/opt/shoal/bin HOME=/var/lib/shoal-device LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 7412
VOLUME /var/lib/shoal-device
STOPSIGNAL SIGTERM
ENTRYPOINT ["fedclient"]
CMD ["run", "--serve", "unix:/var/lib/shoal-device/predictions.sock", "--config", "/etc/shoal/device.yaml", "--state", "/var/lib/shoal-device"]
