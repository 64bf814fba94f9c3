"""On which GPU a kernel is built where there are several: FUSED_MLP_DEVICE says it, or leaves it to free memory."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from fused_mlp.kernels import Kernel, KernelUnavailable
from fused_mlp.kernels.registry import default_device
from fused_mlp.kernels.replicas import ReplicatedKernel

EVERY_GPU = "cuda:all"


def build_placed(device: str, build: Callable[[str], Kernel]) -> Kernel:
    """`build` makes the kernel for a device by name. auto and cuda: the GPU with the most free memory; cuda:all: a
    replica on each."""
    if device not in ("auto", "cuda", EVERY_GPU) or (device == "auto" and default_device() == "cpu"):
        return build(device)
    free = import_module("fused_mlp.kernels.cuda.running.presence").free_bytes()
    if len(free) < 2:
        return build("cuda" if device == EVERY_GPU else device)
    if device == EVERY_GPU:
        return ReplicatedKernel([build(f"cuda:{index}") for index in range(len(free))])
    try:
        return build(f"cuda:{free.index(max(free))}")
    except KernelUnavailable:
        if device == "cuda":
            raise
        return build(device)  # which may choose the CPU, and says why
