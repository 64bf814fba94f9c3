# SPDX-License-Identifier: Apache-2.0
"""Which backends there are, which of them can run a model here, and `compile`, which picks one.
A backend asked for by name runs or fails loudly; only `auto` may pass one over, and says why."""

from __future__ import annotations

import importlib.util
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal

from fused_mlp.extras import install_command
from fused_mlp.kernels.backends import cpu
from fused_mlp.kernels.base import Device, Kernel
from fused_mlp.kernels.cuda.driver_library import has_driver
from fused_mlp.kernels.errors import KernelError, KernelRefuted, KernelUnavailable
from fused_mlp.kernels.selfcheck import check_against_float64
from fused_mlp.models import Mlp
from fused_mlp.models.weights.precision import to_precision
from fused_mlp.models.weights.quantization import Precision
from fused_mlp.variant import Variant

log = logging.getLogger(__name__)

MAX_THREADS = 1024


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


def _torch_missing(_: Mlp) -> str | None:
    if importlib.util.find_spec("torch") is not None:
        return None
    return f"torch is not installed: {install_command('torch')}"


def _later(module: str, name: str) -> Callable[..., Any]:
    """A function of a module that imports torch: imported when it is called."""

    def call(*arguments: object) -> Any:
        return getattr(import_module(f"fused_mlp.kernels.{module}"), name)(*arguments)

    return call


def _with_torch(module: str, name: str) -> Callable[[Mlp], str | None]:
    """An `unavailable` that itself needs torch."""
    ask = _later(module, name)
    return lambda mlp: _torch_missing(mlp) or ask(mlp)


_cuda_missing = _with_torch("cuda.backend", "cuda_unavailable")
_cublas_missing = _with_torch("cuda.backend", "cublas_unavailable")
_triton_missing = _with_torch("cuda.backend", "triton_unavailable")
_example_missing = _with_torch("cuda.backend", "example_unavailable")

# Best first.
_BACKENDS: list[Backend] = [
    Backend("triton", "fused", "cuda", 100, _triton_missing, _later("cuda.backend", "build_triton")),
    Backend("cpu", "fused", "cpu", 100, cpu.unavailable, cpu.CpuKernel),
    Backend("cublas", "fused", "cuda", 50, _cublas_missing, _later("cuda.backend", "build_cublas")),
    Backend("torch", "fused", "cpu", 10, _torch_missing, _later("backends.torch", "TorchKernel")),
    # For those who want to read and change CUDA C++. Never the choice of auto: the others are faster.
    Backend("cuda-example", "fused", "cuda", -1, _example_missing, _later("cuda.backend", "build_example")),
    Backend("eager", "unfused", "cpu", 0, _torch_missing, _later("backends.eager", "build_on_cpu")),
    Backend("eager", "unfused", "cuda", 0, _cuda_missing, _later("backends.eager", "build_on_cuda")),
]


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
    device: str = "auto",
    backend: str = "auto",
    threads: int | None = None,
    tf32: bool | None = None,
    precision: Precision | None = None,
) -> Kernel:
    """Build a kernel for a model, and check it against float64 before handing it out.

    torch is imported only for a kernel that needs it.

    Args:
        mlp: The model.
        variant: "fused", or "unfused" for plain eager layers of torch.
        device: "auto" (a GPU, else the CPU), "cpu", "cuda" (torch's current GPU) or "cuda:1".
        backend: "auto" takes the best that can run the model here. A name ("cpu", "triton", "cublas", "torch", ...)
            is never replaced by another.
        threads: How many threads one call may use. Default: one per core.
        tf32: Whether GPUs multiply float32 in TF32, for the whole process. None leaves torch's switch as it is.
        precision: Keep the weights of a float32 model in "bfloat16" or "int8".

    Returns:
        The kernel: call it with an array of shape (rows, in_features).

    Raises:
        KernelUnavailable: No kernel can run here as asked for; the text lists those that can.
        KernelRefuted: There was one, but it failed its check against float64.

    Examples:
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
        >>> kernel = fused_mlp.compile(fused_mlp.from_torch(net), device="cpu")
        >>> kernel(np.zeros((5, 8), np.float32)).shape
        (5, 3)
    """
    if precision is not None:
        mlp = to_precision(mlp, precision)
    if variant not in ("fused", "unfused"):
        raise KernelUnavailable(f"variant: expected 'fused' or 'unfused', got {variant!r}")
    kind, index = parse_device(device)
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise KernelUnavailable(f"threads: expected 1 to {MAX_THREADS}, got {threads}")
    if backend == "native":  # its name in 0.1
        warnings.warn("the backend 'native' is called 'cpu' now", DeprecationWarning, stacklevel=2)
        backend = "cpu"
    # `auto` looks at the GPU first, then at the CPU.
    devices: list[Device] = list(dict.fromkeys((default_device(), "cpu"))) if kind == "auto" else [kind]
    if tf32 is not None and ("cuda" in devices or sys.modules.get("torch")) and not _torch_missing(mlp):
        _later("cuda.tf32", "set_tf32")(tf32)
    candidates = [candidate for each in devices for candidate in backends(variant, each)]
    if index is None or _torch_missing(mlp):
        return _choose(mlp, candidates, backend, threads, f"{variant} {{}} on {' or '.join(devices)}")
    with _later("cuda.running.current", "current_device")(index):
        return _choose(mlp, candidates, backend, threads, f"{variant} {{}} on {device}")


def compile_like(kernel: Kernel, mlp: Mlp, device: str, backend: str = "auto") -> Kernel:
    """The kernel's backend on another GPU, with its strategy, so that equal GPUs give equal bits: timing it there might
    choose another one. Where it cannot run there, a new choice of `backend`, which the log tells."""
    info = kernel.describe()
    found = [b for b in backends(info.variant, "cuda") if b.name == info.backend]
    if info.backend == "triton":
        build = _later("cuda.backend", "build_triton")
        found = [replace(b, build=lambda mlp, threads: build(mlp, threads, info.strategy)) for b in found]
    _, index = parse_device(device)
    try:
        with _later("cuda.running.current", "current_device")(index):
            return _compile_named(mlp, found, info.backend, None, f"{info.variant} backend on {device}")
    except KernelUnavailable as error:
        log.warning("%s does not run %s of %s as %s does: %s", device, info.strategy, mlp, info.device, error)
        return compile(mlp, variant=info.variant, device=device, backend=backend)


def parse_device(device: str) -> tuple[Device | Literal["auto"], int | None]:
    """`cuda:1` is ("cuda", 1)."""
    kind, _, index = device.partition(":")
    if kind == "auto" and kind == device:
        return "auto", None
    if kind == "cpu" and kind == device:
        return "cpu", None
    if kind == "cuda" and (kind == device or (index.isascii() and index.isdecimal() and len(index) < 4)):
        return "cuda", int(index) if index else None
    raise KernelUnavailable(f"device: expected 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}")


def _choose(mlp: Mlp, candidates: list[Backend], backend: str, threads: int | None, kind: str) -> Kernel:
    """`kind`: what was asked for, in words, with a place for the noun."""
    if backend != "auto":
        return _compile_named(mlp, candidates, backend, threads, kind.format("backend"))

    passed_over: list[str] = []
    failure: type[KernelUnavailable] = KernelUnavailable
    for candidate in candidates:
        kernel, why, refuted = _try(candidate, mlp, threads)
        if refuted:
            failure = KernelRefuted
        if kernel is not None:
            why = "passed over " + "; ".join(passed_over) if passed_over else "the first choice of auto"
            return _explain(kernel, why)
        passed_over.append(f"{candidate.name}: {why}")
    raise failure(
        f"no {kind.format('kernel can run this model')}: {'; '.join(passed_over) or 'none is registered'}"
    )


def _compile_named(mlp: Mlp, candidates: list[Backend], name: str, threads: int | None, kind: str) -> Kernel:
    reasons: list[str] = []
    for candidate in candidates:
        if candidate.name == name:
            kernel, why, _ = _try(candidate, mlp, threads)
            if kernel is not None:
                return _explain(kernel, "asked for by name")
            reasons.append(why)
    why = "; ".join(reasons) or f"there is no {kind} of that name"
    others = [b.name for b in candidates if b.name != name and b.unavailable(mlp) is None]
    usable = ", ".join(dict.fromkeys(others))
    raise KernelUnavailable(f"backend {name!r}: {why}; usable here: {usable or 'none'}")


def _try(candidate: Backend, mlp: Mlp, threads: int | None) -> tuple[Kernel | None, str, bool]:
    """(kernel, "", False), built and checked; or (None, why, whether the check refused it)."""
    why = candidate.unavailable(mlp)
    if why is not None:
        return None, why, False
    try:
        kernel = candidate.build(mlp, threads)
        check(kernel, mlp)
    except KernelError as error:
        log.warning("%s kernel %r is not used: %s", candidate.variant, candidate.name, error)
        return None, str(error), isinstance(error, KernelRefuted)
    except Exception as error:  # a failing compiler, no memory: try the next backend
        log.exception("%s kernel %r could not be built", candidate.variant, candidate.name)
        return None, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}", False
    return kernel, "", False


def check(kernel: Kernel, mlp: Mlp) -> None:
    """Raise KernelRefuted if it computes something else than the model. On a GPU it is compared with plain layers there
    too. Plain layers, which sum as cuBLAS chooses, serve even if they fail; the log says so."""
    info = kernel.describe()
    if info.device == "cpu":
        check_against_float64(kernel, mlp)
    elif info.variant == "fused":
        eager = _later("backends.eager", "EagerKernel")
        check_against_float64(kernel, mlp, lambda: eager(mlp, info.device, None))
    else:
        try:
            check_against_float64(kernel, mlp)
        except KernelRefuted as error:
            log.warning("unfused on %s serves, less exact than on the CPU: %s", info.device, error)


def _explain(kernel: Kernel, why: str) -> Kernel:
    """Append to `describe().reason` why this kernel was chosen."""
    own = kernel._info.reason
    kernel._info = replace(kernel._info, reason=f"{own}; {why}" if own else why)
    return kernel


def default_device() -> Device:
    """cuda where there is an NVIDIA driver, unless torch cannot use it. Where there is no driver, torch is not imported
    only to say so."""
    if sys.modules.get("torch") is not None:
        # By a module that imports torch, not by what is there of it: another thread may be importing it.
        return "cuda" if _later("cuda.running.presence", "sees_gpu")() else "cpu"
    if not has_driver():
        return "cpu"
    if importlib.util.find_spec("torch") is None:
        return "cuda"  # its backends say what is missing
    return "cuda" if _later("cuda.backend", "cuda_unavailable")(None) is None else "cpu"
