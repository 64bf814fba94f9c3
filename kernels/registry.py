"""Which backends there are, which of them can run a model here, and `compile`, which picks one.
A backend asked for by name runs or fails loudly; only `auto` may pass one over, and says why."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from kernels.base import Device, Kernel, Variant
from kernels.errors import KernelError, KernelUnavailable
from kernels.selfcheck import check_against_float64
from models import Mlp

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Backend:
    """One way to run an MLP. `unavailable` returns why it cannot run this model here, or None;
    among those that can, `auto` tries the highest `rank` first."""

    name: str
    variant: Variant
    device: Device
    rank: int
    unavailable: Callable[[Mlp], str | None]
    build: Callable[[Mlp, int | None], Kernel]


_BACKENDS: list[Backend] = []


def register(backend: Backend) -> None:
    _BACKENDS.append(backend)
    _BACKENDS.sort(key=lambda b: -b.rank)


def backends(variant: Variant | None = None, device: Device | None = None) -> list[Backend]:
    """The registered backends, best first."""
    return [b for b in _BACKENDS if variant in (None, b.variant) and device in (None, b.device)]


def compile(  # noqa: A001 - the public name, as in torch.compile
    mlp: Mlp,
    *,
    variant: Variant = "fused",
    device: Device | Literal["auto"] = "auto",
    backend: str = "auto",
    threads: int | None = None,
) -> Kernel:
    """Build a kernel for `mlp` and check it against float64 before handing it out."""
    if variant not in ("fused", "unfused"):
        raise KernelUnavailable(f"variant: expected 'fused' or 'unfused', got {variant!r}")
    if device not in ("auto", "cpu", "cuda"):
        raise KernelUnavailable(f"device: expected 'auto', 'cpu' or 'cuda', got {device!r}")
    if threads is not None and threads < 1:
        raise KernelUnavailable(f"threads: expected at least 1, got {threads}")
    wanted: Device = device if device != "auto" else _default_device()
    candidates = backends(variant, wanted)
    if device == "auto" and backend == "auto" and wanted == "cuda":
        candidates += backends(variant, "cpu")
    if backend != "auto":
        return _compile_named(mlp, variant, wanted, backend, threads)

    passed_over: list[str] = []
    for candidate in candidates:
        why = candidate.unavailable(mlp)
        if why is None:
            try:
                kernel = candidate.build(mlp, threads)
                check_against_float64(kernel, mlp)
            except KernelError as error:
                why = str(error)
                log.warning("%s kernel %s is not used: %s", variant, candidate.name, why)
            else:
                return _explain(kernel, passed_over)
        passed_over.append(f"{candidate.name}: {why}")
    raise KernelUnavailable(
        f"no {variant} kernel can run this model on {wanted}: {'; '.join(passed_over) or 'none is registered'}"
    )


def _compile_named(mlp: Mlp, variant: Variant, device: Device, name: str, threads: int | None) -> Kernel:
    for candidate in backends(variant, device):
        if candidate.name == name:
            why = candidate.unavailable(mlp)
            if why is None:
                kernel = candidate.build(mlp, threads)
                check_against_float64(kernel, mlp)
                return kernel
            break
    else:
        why = f"there is no {variant} backend of that name on {device}"
    usable = [b.name for b in backends(variant, device) if b.unavailable(mlp) is None]
    raise KernelUnavailable(f"backend {name!r}: {why}; usable here: {', '.join(usable) or 'none'}")


def _explain(kernel: Kernel, passed_over: list[str]) -> Kernel:
    if passed_over:
        note = "passed over " + "; ".join(passed_over)
        kernel._info = replace(kernel._info, reason=note)
    return kernel


def _default_device() -> Device:
    return "cuda" if torch.cuda.is_available() else "cpu"
