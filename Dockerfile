# syntax=docker/dockerfile:1
#
#   docker build -t fused-mlp .                            for CPUs
#   docker build -t fused-mlp:cuda --build-arg DEVICE=cuda .  for NVIDIA GPUs (run with --gpus all)
#   docker run --rm -p 8001:8001 -p 8002:8002 fused-mlp
#
# torch comes from pip's default index unless TORCH_INDEX_URL names another. The default wheels carry CUDA and run
# on CPUs too; PyTorch's index of CPU wheels (its address is on the install page of pytorch.org) makes the CPU
# image several gigabytes smaller. Both flavours share one base: torch brings the CUDA libraries it needs, a CUDA
# base image would add a second, unused copy.
ARG DEVICE=cpu
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      g++ pkg-config libnghttp2-dev libprotozero-dev libssl-dev zlib1g-dev \
 && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/fused-mlp
ENV PATH=/opt/fused-mlp/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# torch first, in a layer of its own: it is the large one, and changes least. Its version stands in pyproject.toml.
ARG TORCH_INDEX_URL=
COPY pyproject.toml ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install ${TORCH_INDEX_URL:+--index-url "${TORCH_INDEX_URL}"} \
      "$(sed -n 's/^ *"\(torch==[^"]*\)",/\1/p' pyproject.toml)"
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install .

FROM python:${PYTHON_VERSION}-slim-bookworm AS runtime-cpu

FROM python:${PYTHON_VERSION}-slim-bookworm AS runtime-cuda
# Triton compiles a small launcher for each kernel with the C compiler it finds.
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    TRITON_CACHE_DIR=/tmp/triton

FROM runtime-${DEVICE} AS final
RUN apt-get update \
 && apt-get install -y --no-install-recommends libnghttp2-14 libssl3 zlib1g \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin fused-mlp
COPY --from=build /opt/fused-mlp /opt/fused-mlp
# Nothing is written at run time but Triton's cache in /tmp: the root file system may be read-only.
ENV PATH=/opt/fused-mlp/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    FUSED_MLP_HOST=0.0.0.0 \
    FUSED_MLP_METRICS_HOST=0.0.0.0
WORKDIR /tmp
USER 10001:10001
EXPOSE 8001 8002
STOPSIGNAL SIGTERM
# Through grpc.health.v1, on the port the server was given. With TLS, say what to trust: FUSED_MLP_TARGET_CA, _NAME.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
  CMD exec fused-mlp health --target "127.0.0.1:${FUSED_MLP_GRPC_PORT:-8001}"
ENTRYPOINT ["fused-mlp"]
CMD ["serve"]
