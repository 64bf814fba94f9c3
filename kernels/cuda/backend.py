# SPDX-License-Identifier: Apache-2.0
"""The CUDA backends: `triton` (its own strategies and cublas, the fastest serves), `cublas` alone, and the hand-written
`cuda-example`. The registry asks here on every machine with a GPU, so triton is imported when a kernel is built."""

from __future__ import annotations

import importlib.util
import logging
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import torch

from fused_mlp.kernels.base import Kernel, KernelInfo
from fused_mlp.kernels.cuda import kernel_cache
from fused_mlp.kernels.cuda.example.compiling import find_nvcc
from fused_mlp.kernels.cuda.example.program import ExampleProgram, unsuitable
from fused_mlp.kernels.cuda.planning.architectures import Architecture
from fused_mlp.kernels.cuda.planning.plans import dtype_on_gpu, precision_of
from fused_mlp.kernels.cuda.planning.rule import candidate_tiles, tile_by_rule
from fused_mlp.kernels.cuda.planning.tiles import Tile
from fused_mlp.kernels.cuda.running import native
from fused_mlp.kernels.cuda.running.cublas import CublasProgram
from fused_mlp.kernels.cuda.running.native_building import build_by_rule, with_native_launcher
from fused_mlp.kernels.cuda.running.program import Program
from fused_mlp.kernels.cuda.running.runtime import TorchRuntime
from fused_mlp.kernels.cuda.running.selection import Candidate, select
from fused_mlp.kernels.cuda.tf32 import multiplies_in_tf32
from fused_mlp.kernels.errors import KernelError
from fused_mlp.kernels.lookups import unsupported
from fused_mlp.models import Mlp

log = logging.getLogger(__name__)

OLDEST_TRITON = (3, 5)  # the first with constexpr_function, which the kernels use
# The batch the rule assumes when candidates are put in order: a service under moderate load.
TYPICAL_ROWS = 64


def cuda_unavailable(_: object) -> str | None:
    return None if torch.cuda.is_available() else "torch sees no CUDA device"


def cublas_unavailable(mlp: Mlp) -> str | None:
    return unsupported(mlp.spec) or cuda_unavailable(mlp)


def triton_unavailable(mlp: Mlp) -> str | None:
    """Why Triton kernels cannot run here, or None. Does not import triton."""
    why, unable = cuda_unavailable(mlp), unsupported(mlp.spec)
    if unable is not None or (why is not None and native.unavailable()):
        return unable or why
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (it comes with CUDA builds of torch): pip install triton"
    if (old := _old_triton()) is not None:
        return f"triton: expected {'.'.join(map(str, OLDEST_TRITON))} or newer, which comes with torch 2.9, got {old}"
    if (unusable := kernel_cache.unusable()) is not None:
        return unusable
    if (_runtime().architecture if why is None else native.architecture(native.current())) is None:
        major, minor = (
            torch.cuda.get_device_capability() if why is None else native.capability(native.current())
        )
        return f"no tiles for compute capability {major}.{minor}: expected 8.x, 9.x, 10.x or 12.x"
    return None


def _old_triton() -> str | None:
    """The version of a triton that cannot compile the kernels; None if it can, or has no version that we know of."""
    for name in ("triton", "pytorch-triton"):  # the latter beside nightly builds of torch
        with suppress(PackageNotFoundError, ValueError):
            found = version(name)
            return found if tuple(map(int, found.split(".")[:2])) < OLDEST_TRITON else None
    return None


def build_triton(
    mlp: Mlp, threads: int | None = None, strategy: str | None = None, *, timed: bool = True
) -> Kernel:
    """Every tile that fits and cublas, in the rule's order; timed, the fastest serves, else the first
    usable one. `strategy`: that one only. Where torch has no CUDA but NVIDIA's driver is there, the rule's choice,
    launched natively."""
    mlp, why = _as_it_runs(mlp)
    if not torch.cuda.is_available() and not native.unavailable():
        ordinal = native.current()
        architecture = native.architecture(ordinal)
        assert architecture is not None
        tiles = _named(_ordered_tiles(mlp, architecture), strategy)
        return _told(build_by_rule(mlp, ordinal, architecture, tiles), why)
    runtime, every = candidates(mlp)
    assert runtime.architecture is not None
    found = _named(every, strategy)
    timed = timed and strategy is None
    return _build("triton", runtime.architecture.name, mlp, found, runtime, timed=timed, why=why)


_Labelled = TypeVar("_Labelled", Tile, Candidate)


def _named(found: list[_Labelled], label: str | None) -> list[_Labelled]:
    named = [each for each in found if label in (None, each.label)]
    if not named:
        raise KernelError(f"strategy {label}: expected one of {', '.join(each.label for each in found)}")
    return named


def candidates(mlp: Mlp) -> tuple[TorchRuntime, list[Candidate]]:
    """The candidates to serve a model on the current device, the rule's choice first. Nothing is built yet."""
    runtime = _runtime()
    architecture = runtime.architecture
    assert architecture is not None
    found = [_triton_candidate(mlp, tile, runtime.device) for tile in _ordered_tiles(mlp, architecture)]
    return runtime, [*found, _cublas_candidate(mlp, runtime.device)]


def _ordered_tiles(mlp: Mlp, architecture: Architecture) -> list[Tile]:
    tf32 = multiplies_in_tf32()
    preferred = tile_by_rule(mlp.spec, architecture, TYPICAL_ROWS, tf32)
    tiles = candidate_tiles(mlp.spec, architecture, tf32)
    return [preferred, *(tile for tile in tiles if tile != preferred)]


def build_cublas(mlp: Mlp, threads: int | None = None) -> Kernel:
    mlp, why = _as_it_runs(mlp)
    runtime = _runtime()
    major, minor = torch.cuda.get_device_capability()
    found = [_cublas_candidate(mlp, runtime.device)]
    return _build("cublas", f"sm_{major}{minor}", mlp, found, runtime, timed=True, why=why)


def _as_it_runs(mlp: Mlp) -> tuple[Mlp, str]:
    """Weights in fewer bits in the dtype in which a GPU runs them; the reason for `describe()`."""
    dtype = dtype_on_gpu(mlp.spec, mlp.precision, kept=mlp.reduced_share < 1)
    if dtype == mlp.spec.dtype:
        return mlp, ""
    how = "int8 weights, dequantised to" if mlp.precision == "int8" else "bfloat16 weights, in"
    return mlp.rounded_to(dtype), f"{how} {dtype}"


def example_unavailable(mlp: Mlp) -> str | None:
    """Why the hand-written example cannot run here, or None."""
    if (why := cublas_unavailable(mlp) or unsuitable(mlp.spec)) is not None:
        return why
    return (
        None
        if find_nvcc()
        else "nvcc is not found: install the CUDA toolkit, and have it on PATH or in CUDA_HOME"
    )


def build_example(mlp: Mlp, threads: int | None = None) -> Kernel:
    mlp, why = _as_it_runs(mlp)
    runtime = _runtime()
    major, minor = torch.cuda.get_device_capability()
    found = [Candidate("example", lambda: ExampleProgram(mlp, runtime.device))]
    return _build("cuda-example", f"sm_{major}{minor}", mlp, found, runtime, timed=True, why=why)


def _build(
    backend: str, isa: str, mlp: Mlp, found: list[Candidate], runtime: TorchRuntime, *, timed: bool, why: str
) -> Kernel:
    precision = precision_of(mlp.spec, multiplies_in_tf32())
    info = KernelInfo(
        variant="fused",
        backend=backend,
        device=str(runtime.device),
        strategy="",
        isa=isa,
        dtype="tf32" if precision == "tf32" else mlp.spec.dtype,
        threads=1,
    )
    kernel = with_native_launcher(
        select(found, mlp, runtime, info, contexts=native.LAUNCH_CONTEXTS, timed=timed)
    )
    runtime.release()  # what only the launcher that lost needed
    _told(kernel, why)
    log.info("%s", kernel.describe())
    return kernel


def _told(kernel: Kernel, why: str) -> Kernel:
    """The kernel, with `why` before its other reasons."""
    if why:
        kernel._info = replace(kernel._info, reason=f"{why}; {kernel._info.reason}")
    return kernel


def _triton_candidate(mlp: Mlp, tile: Tile, device: torch.device) -> Candidate:
    def build() -> Program:
        from fused_mlp.kernels.cuda.running.triton_programs import TritonProgram  # noqa: PLC0415 - imports triton

        return TritonProgram(mlp, tile, device)

    return Candidate(tile.label, build)


def _cublas_candidate(mlp: Mlp, device: torch.device) -> Candidate:
    return Candidate("cublas", lambda: CublasProgram(mlp, device))


def _runtime() -> TorchRuntime:
    return TorchRuntime(torch.device("cuda", torch.cuda.current_device()))
