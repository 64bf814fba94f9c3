# syntax=docker/dockerfile:1
#
#   docker build -t fused-mlp .                                    lean, without torch: fused kernels on a CPU
#   docker build -t fused-mlp:torch --target torch .               with torch: unfused too, and the A/B between them
#   docker build -t fused-mlp:cuda --target cuda .                 for NVIDIA GPUs (run with --gpus all)
#   docker run --rm -p 8000:8000 -p 8001:8001 -p 8002:8002 fused-mlp
#
# torch comes from pip's default index unless TORCH_INDEX_URL names another. The default wheels carry CUDA and run
# on CPUs too; PyTorch's index of CPU wheels (its address is on the install page of pytorch.org) makes the torch
# image several gigabytes smaller. The CUDA image has the same base: torch brings the CUDA libraries it needs, a CUDA
# base image would add a second, unused copy.
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      g++ pkg-config libnghttp2-dev libprotozero-dev libsimdjson-dev libssl-dev node-llhttp zlib1g-dev \
 && rm -rf /var/lib/apt/lists/*
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip wheel --no-deps --wheel-dir /wheels .

# Without pip in it: nothing is installed at run time.
FROM build AS lean-venv
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv --without-pip /opt/fused-mlp \
 && pip --python /opt/fused-mlp/bin/python install --constraint constraints.txt "$(ls /wheels/*.whl)[serve]"

# torch first, in a layer of its own: it is the large one, and changes least.
FROM python:${PYTHON_VERSION}-slim-bookworm AS torch-base
ARG TORCH_INDEX_URL=
COPY constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv --without-pip /opt/fused-mlp \
 && pip --python /opt/fused-mlp/bin/python install --disable-pip-version-check \
      ${TORCH_INDEX_URL:+--index-url "${TORCH_INDEX_URL}"} "$(grep '^torch==' constraints.txt)"

FROM torch-base AS torch-venv
COPY --from=build /wheels /wheels
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/fused-mlp/bin/python install --constraint constraints.txt "$(ls /wheels/*.whl)[serve,torch]"

FROM python:${PYTHON_VERSION}-slim-bookworm AS runtime
RUN apt-get update \
 && apt-get install -y --no-install-recommends libnghttp2-14 libsimdjson14 libssl3 zlib1g \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin fused-mlp \
 && install -d -o 10001 -g 10001 /var/cache/fused-mlp
# Nothing is written at run time but Triton's cache, on GPUs: the root file system may be read-only. Where the cache is
# mounted, code must be allowed to run (a tmpfs of Docker's is noexec by default). An image of your own may carry one that
# is filled: COPY what `fused-mlp warm --arch sm_90 --output DIR` made.
ENV PATH=/opt/fused-mlp/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TRITON_CACHE_DIR=/var/cache/fused-mlp/triton \
    FUSED_MLP_HOST=0.0.0.0 \
    FUSED_MLP_METRICS_HOST=0.0.0.0
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000 8001 8002
STOPSIGNAL SIGTERM
# Through grpc.health.v1, on the port the server was given. With TLS, say what to trust: FUSED_MLP_TARGET_CA, _NAME.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
  CMD exec fused-mlp health --target "127.0.0.1:${FUSED_MLP_GRPC_PORT:-8001}"
ENTRYPOINT ["fused-mlp"]
CMD ["serve"]

FROM runtime AS torch
COPY --from=torch-venv /opt/fused-mlp /opt/fused-mlp

FROM torch AS cuda
# Triton compiles a small launcher for each kernel with the C compiler it finds.
USER root
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
USER 10001:10001
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

# The last target is the default.
FROM runtime AS lean
COPY --from=lean-venv /opt/fused-mlp /opt/fused-mlp
