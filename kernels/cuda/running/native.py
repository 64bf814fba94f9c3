# SPDX-License-Identifier: Apache-2.0
"""The native launcher (kernels/csrc/cuda): hands it machine code, the launches and the addresses of weights, and wraps
what comes back. From then on a batch runs without Python; the engine calls it through the C interface. It needs
NVIDIA's driver, not a CUDA build of torch."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import torch

from fused_mlp.kernels.base import Float32, Kernel, KernelInfo
from fused_mlp.kernels.cores import usable_cores
from fused_mlp.kernels.cuda.planning.architectures import Architecture, architecture_of
from fused_mlp.kernels.cuda.planning.forward import Argument, ForwardPlan
from fused_mlp.kernels.cuda.planning.placement import SCRATCH, X, Y
from fused_mlp.kernels.cuda.planning.plans import ELEMENT_BYTES
from fused_mlp.kernels.cuda.running.presence import is_lost, report_lost
from fused_mlp.kernels.errors import KernelError, KernelInputError, KernelUnavailable
from fused_mlp.kernels.failure import report_failure
from fused_mlp.models import MlpSpec

try:
    from fused_mlp.kernels import _cuda
except ImportError:  # not built: Python launches
    _cuda = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

LAUNCHER = "launched natively"
# Two batches in flight: one computes while the other is copied. More would only queue on the device.
LAUNCH_CONTEXTS = 2

OnDevice = Callable[[torch.Tensor, torch.Tensor], None]


def unavailable() -> str:
    """Why it cannot launch here; empty if it can."""
    return _cuda.unavailable() if _cuda is not None else "fused_mlp.kernels._cuda is missing"


@cache
def open_device(ordinal: int) -> _cuda.Device:
    """Kept open: what is known of a GPU that was lost is true for as long as the process lives."""
    device = _cuda.Device(ordinal)
    device.on_lost(partial(_report, ordinal))
    device.set_cores(usable_cores())
    return device


def count() -> int:
    """How many GPUs the driver has. Opens none: a context takes memory on its GPU."""
    return 0 if unavailable() else _cuda.device_count()


# The GPU that kernels are built for where torch sees none: what torch.cuda.current_device() is elsewhere.
_CURRENT: ContextVar[int] = ContextVar("_CURRENT", default=0)


def current() -> int:
    return _CURRENT.get()


@contextmanager
def use(ordinal: int) -> Iterator[None]:
    """Within it, that GPU is the current one."""
    try:
        open_device(ordinal)
    except ValueError as error:  # says which there are
        raise KernelUnavailable(f"'cuda:{ordinal}': {error}") from error
    token = _CURRENT.set(ordinal)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _report(ordinal: int, error: str) -> None:
    report_failure(f"cuda:{ordinal} is lost: {error}")


def architecture(ordinal: int) -> Architecture | None:
    return architecture_of(open_device(ordinal).capability)


def capability(ordinal: int) -> tuple[int, int]:
    return divmod(open_device(ordinal).capability, 10)


class NativeKernel(Kernel):
    """`on_device` runs tensors that are on the GPU already, through torch; without it they go through the host."""

    def __init__(
        self,
        spec: MlpSpec,
        info: KernelInfo,
        compiled: _cuda.Kernel,
        weight_bytes: int,
        on_device: OnDevice | None = None,
    ) -> None:
        super().__init__(spec, info)
        self._compiled = compiled
        self._weight_bytes = weight_bytes
        self._on_device = on_device

    @property
    def memory_bytes(self) -> int:
        return self._weight_bytes + self._compiled.device_bytes

    def run(self, x: Float32, y: Float32) -> str:
        try:
            fits = self._compiled.run(x, y)
        except _cuda.DriverError as error:
            raise KernelError(f"CUDA failed on a batch of {x.shape[0]} rows: {error}") from error
        if not fits:
            raise KernelInputError(
                f"expected x (rows, {self.spec.in_features}) and y (rows, {self.spec.out_features}), "
                f"got {x.shape} and {y.shape}"
            )
        return self._info.strategy

    def replay_graphs(self) -> None:
        try:
            self._compiled.replay_graphs()
        except _cuda.DriverError as error:
            raise KernelError(f"CUDA failed on a graph: {error}") from error

    def capsule(self) -> object:
        return self._compiled.capsule()

    def forward_tensors(self, x: torch.Tensor, y: torch.Tensor) -> None:
        if self._on_device is None or not (x.is_cuda and y.is_cuda):
            super().forward_tensors(x, y)
            return
        try:
            self._on_device(x, y)
        except RuntimeError as error:  # torch's
            device = torch.device(self._info.device)
            if is_lost(device):
                report_lost(device, error)
            raise KernelError(f"CUDA failed on a batch of {x.shape[0]} rows: {error}") from error


def hand_over(
    spec: MlpSpec,
    info: KernelInfo,
    ordinal: int,
    forward: ForwardPlan,
    *,
    binaries: Sequence[Any],
    tensors: Sequence[torch.Tensor | _cuda.DeviceArray],
    on_device: OnDevice | None = None,
) -> NativeKernel:
    """`binaries`: Triton's CompiledKernels of the launches; `tensors`: the packed ones, on that GPU."""
    addresses = [
        tensor.data_ptr() if isinstance(tensor, torch.Tensor) else tensor.address for tensor in tensors
    ]
    device = open_device(ordinal)
    kernels: list[tuple[bytes, str, str, int, int]] = []
    launches: list[tuple[int, int, int, list[tuple[str, int]], int, int, bool]] = []
    for index, (launch, binary) in enumerate(zip(forward.launches, binaries, strict=True)):
        # After their arguments Triton's kernels have two of Triton's own, which these do not use.
        arguments = [_argument(each, addresses) for each in launch.arguments] + [("null", 0)] * 2
        plan = launch.plan
        dependent = plan.overlaps(device.capability)
        kernels.append(_machine_code(binary, len(arguments), dependent))
        shape = (index, plan.block_m, plan.column_blocks, arguments)
        launches.append((*shape, plan.min_rows, plan.max_rows, dependent))
    try:
        compiled = _cuda.Kernel(
            device,
            info.strategy,
            spec.in_features,
            spec.out_features,
            [(each.row * ELEMENT_BYTES[each.element], each.max_rows) for each in forward.scratch],
            kernels,
            launches,
            LAUNCH_CONTEXTS,
            list(tensors),
        )
    except (_cuda.DriverError, ValueError) as error:
        raise KernelError(f"native launcher: {error}") from error
    return NativeKernel(spec, info, compiled, sum(tensor.nbytes for tensor in tensors), on_device)


def _machine_code(binary: Any, arguments: int, dependent: bool) -> tuple[bytes, str, str, int, int]:
    """As `_cuda.Kernel` takes it. Refuses what a launch needs besides its arguments, or what another Triton calls
    differently: Triton launches that."""
    metadata, ptx = binary.metadata, binary.asm["ptx"]
    try:
        extras = metadata.global_scratch_size or metadata.profile_scratch_size
        extras = extras or metadata.launch_cooperative_grid or metadata.num_ctas != 1
        extras = extras or (metadata.launch_pdl and not dependent)
        code = (binary.asm["cubin"], ptx, metadata.name, 32 * metadata.num_warps, metadata.shared)
    except AttributeError as error:
        raise KernelError(f"this version of Triton describes its kernels differently: {error}") from error
    entry = re.search(rf"\.entry\s+{re.escape(metadata.name)}\s*\(([^)]*)\)", ptx)
    declared = entry.group(1).count(".param") if entry else 0
    if extras:
        raise KernelError(f"kernel {metadata.name} needs more than its arguments: Triton launches it")
    if declared != arguments:
        raise KernelError(
            f"kernel {metadata.name}: expected {arguments} parameters, Triton declares {declared}"
        )
    return code


def upload(ordinal: int, tensors: Sequence[torch.Tensor]) -> list[_cuda.DeviceArray]:
    """For a torch that sees no GPU."""
    device = open_device(ordinal)
    try:
        # As bytes: numpy knows no bfloat16.
        return [_cuda.DeviceArray(device, tensor.flatten().view(torch.uint8).numpy()) for tensor in tensors]
    except _cuda.DriverError as error:
        mib = sum(tensor.nbytes for tensor in tensors) / (1 << 20)
        raise KernelError(f"no room on the GPU for {mib:.1f} MiB of weights: {error}") from error


def _argument(argument: Argument, addresses: Sequence[int]) -> tuple[str, int]:
    if argument.kind == "rows":
        return "rows", 0
    if argument.kind == "tensor":
        return "address", addresses[argument.index]
    if argument.index in (X, Y):
        return ("x" if argument.index == X else "y"), 0
    return "scratch", argument.index - SCRATCH
