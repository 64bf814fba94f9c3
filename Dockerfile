# syntax=docker/dockerfile:1
#
#   docker build -t fused-mlp .                                    lean, without torch: fused kernels on a CPU
#   docker build -t fused-mlp:torch --target torch .               with torch: unfused too, and the A/B between them
#   docker build -t fused-mlp:cuda --target cuda .                 for NVIDIA GPUs (run with --gpus all)
#   ... --build-arg VERSION=0.1.0                                  what `fused-mlp --version` says; git is not in the context
#   docker run --rm --init -p 8000:8000 -p 8001:8001 -p 8002:8002 fused-mlp
#
# torch, the other dependencies and the application are layers of their own: a change of the code pushes the last alone.
# pip's own configuration, with an index of yours, is a secret: --secret id=pip,src=/etc/pip.conf. torch comes from pip's
# default index unless TORCH_INDEX_URL names another. The default wheels carry CUDA and run on CPUs too; PyTorch's index
# of CPU wheels (its address is on the install page of pytorch.org) makes the torch image several gigabytes smaller. The
# CUDA image has the same base: torch brings the CUDA libraries it needs, a CUDA base image would add a second, unused
# copy. scripts/build-image builds it all without a registry.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS base
ENV PIP_DISABLE_PIP_VERSION_CHECK=1

FROM base AS build
# Where the base's Python is Debian's, its headers are a package.
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      g++ pkg-config libnghttp2-dev libprotozero-dev libsimdjson-dev libssl-dev node-llhttp zlib1g-dev \
      $(test -x /usr/local/bin/python3 || echo python3-dev) \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
WORKDIR /src
COPY . .
ARG VERSION=0.0.0
# The command starts with the Python of the image that runs it: the same path, without what is installed there.
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip,target=/etc/pip.conf \
    SETUPTOOLS_SCM_PRETEND_VERSION_FOR_FUSED_MLP=${VERSION} pip wheel --no-deps --wheel-dir /wheels . \
 && python -m venv --without-pip /opt/fused-mlp \
 && pip --python /opt/fused-mlp/bin/python install --no-deps --target /opt/app /wheels/*.whl

# What to install, by itself: most changes of pyproject.toml leave it as it is, and with it the layers made of it.
FROM base AS requirements
# Others, by commas: s3, gcs, hf (repositories in object stores), watch (FUSED_MLP_RELOAD=watch).
ARG EXTRAS=serve
COPY pyproject.toml ./
RUN python3 -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = [r for name in '${EXTRAS}'.split(',') for r in p['optional-dependencies'][name]]; \
print(*sorted({r for r in p['dependencies'] + extras if not r.startswith('fused-mlp')}), sep='\n')" >/requirements.txt

FROM base AS runtime
RUN apt-get update \
 && apt-get install -y --no-install-recommends libnghttp2-14 libsimdjson14 libssl3 zlib1g \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
 && groupadd --system --gid 10001 fused-mlp \
 && useradd --system --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin fused-mlp \
 && install -d -o 10001 -g 10001 /var/cache/fused-mlp \
 && python -m venv --without-pip /opt/fused-mlp
# Nothing is written at run time but Triton's cache, on GPUs: the root file system may be read-only. Where the cache is
# mounted, code must be allowed to run (a tmpfs of Docker's is noexec by default). An image of your own may carry one that
# is filled: COPY what `fused-mlp warm --arch sm_90 --output DIR` made.
ENV PATH=/opt/app/bin:/opt/fused-mlp/bin:$PATH \
    PYTHONPATH=/opt/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TRITON_CACHE_DIR=/var/cache/fused-mlp/triton \
    FUSED_MLP_HOST=0.0.0.0 \
    FUSED_MLP_METRICS_HOST=0.0.0.0
WORKDIR /tmp
EXPOSE 8000 8001 8002
STOPSIGNAL SIGTERM
# Through grpc.health.v1, on the port the server was given. With TLS, say what to trust: FUSED_MLP_TARGET_CA, _NAME.
# Images in OCI's format (buildah's and podman's default) have no such probe, and Kubernetes never reads it: name it there.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
  CMD exec fused-mlp health --target "127.0.0.1:${FUSED_MLP_GRPC_PORT:-8001}"
ENTRYPOINT ["fused-mlp"]
CMD ["serve"]

# torch first, which is the largest and changes least: its layer depends on its version alone.
FROM runtime AS torch-layer
ARG TORCH_VERSION=2.13.0
ARG TORCH_INDEX_URL=
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip --python /opt/fused-mlp/bin/python install \
      ${TORCH_INDEX_URL:+--index-url "${TORCH_INDEX_URL}"} "torch==${TORCH_VERSION}"

FROM torch-layer AS torch-dependencies
COPY --from=requirements /requirements.txt /opt/fused-mlp/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip --python /opt/fused-mlp/bin/python install --requirement /opt/fused-mlp/requirements.txt

FROM torch-dependencies AS torch
COPY --from=build /opt/app /opt/app
USER 10001:10001

FROM torch-dependencies AS cuda
# Triton compiles a small launcher for each kernel with the C compiler it finds.
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build /opt/app /opt/app
USER 10001:10001

FROM runtime AS lean-dependencies
COPY --from=requirements /requirements.txt /opt/fused-mlp/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip --python /opt/fused-mlp/bin/python install --requirement /opt/fused-mlp/requirements.txt

# The last target is the default.
FROM lean-dependencies AS lean
COPY --from=build /opt/app /opt/app
USER 10001:10001
