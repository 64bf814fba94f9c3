# SPDX-License-Identifier: Apache-2.0
"""Chooses the GPU for a kernel, if there are several: by FUSED_MLP_DEVICE, or by free memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module

from fused_mlp.kernels import Kernel, KernelUnavailable
from fused_mlp.kernels.registry import default_device
from fused_mlp.kernels.replicas import ReplicatedKernel

EVERY_GPU = "cuda:all"


def choose_devices(setting: str, taken: Iterable[str] = ()) -> tuple[str, ...]:
    """The devices, by name, that all kernels of a version are built on. auto and cuda: the GPU that it has kernels on
    (`taken`), else the one with the most free memory; cuda:all: each of them."""
    if setting not in ("auto", "cuda", EVERY_GPU) or (setting == "auto" and default_device() == "cpu"):
        return (setting,)
    if setting == EVERY_GPU:
        count = import_module("fused_mlp.kernels.cuda.running.current").device_count()
        return tuple(f"cuda:{index}" for index in range(count)) if count > 1 else ("cuda",)
    for device in taken:
        if device.startswith("cuda"):
            return (device,)
    free = import_module("fused_mlp.kernels.cuda.running.device_memory").free_bytes()
    return (f"cuda:{free.index(max(free))}",) if len(free) > 1 else (setting,)


def build_placed(
    setting: str, devices: tuple[str, ...], build: Callable[[str, Kernel | None], Kernel]
) -> Kernel:
    """`build` makes the kernel for a device by name; on further devices, like the one that it made on the first."""
    if len(devices) > 1:
        first = build(devices[0], None)
        return ReplicatedKernel([first, *(build(device, first) for device in devices[1:])])
    try:
        return build(devices[0], None)
    except KernelUnavailable:
        if setting != "auto" or devices == ("auto",):
            raise
        return build("auto", None)  # which may choose the CPU, and says why
