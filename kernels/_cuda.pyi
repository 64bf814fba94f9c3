# SPDX-License-Identifier: Apache-2.0
"""Stub of the compiled launcher for GPUs (kernels/csrc/cuda), which `fused_mlp.kernels.cuda` uses."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

class DriverError(RuntimeError):
    """A call of NVIDIA's driver failed."""

class Device:
    """A GPU with its primary context, which is also torch's. One per process and GPU. Raises ValueError for an ordinal
    that is not there, RuntimeError where there is no driver."""
    def __init__(self, ordinal: int) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def capability(self) -> int:
        """80 for sm_80."""
    def on_lost(self, tell: Callable[[str], object]) -> None:
        """Have `tell` called with the text of the sticky error, once, by the thread that meets it."""
    def set_cores(self, cores: int) -> None:
        """How many this process may use: a thread that waits spins for less where all of them are busy."""

class DeviceArray:
    """A copy of a C-contiguous array, of any dtype, in the memory of a GPU."""
    def __init__(self, device: Device, array: NDArray[np.generic]) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class Kernel:
    """Loads the machine code and allocates all that `contexts` batches in flight need. `owner` keeps alive what
    addresses point to. Raises ValueError for a plan that does not fit together."""
    def __init__(
        self,
        device: Device,
        label: str,
        in_features: int,
        out_features: int,
        scratch: Sequence[tuple[int, int]],
        kernels: Sequence[tuple[bytes, str, str, int, int]],
        launches: Sequence[tuple[int, int, int, Sequence[tuple[str, int]], int, int, bool]],
        contexts: int,
        owner: object,
    ) -> None:
        """kernels: cubin (may be empty), PTX (taken where the cubin is for another GPU), name, threads of a block,
        bytes of shared memory. launches, in order: which kernel, rows of a block, blocks of columns, arguments:
        ("x", 0), ("y", 0), ("scratch", buffer), ("address", on the device), ("rows", 0) or ("null", 0); for batches
        of so many rows at least and at most; whether it may begin before the launch before it ends. scratch: bytes of a
        row, and of how many rows at most, of each buffer between launches."""
    def run(self, x: Float32, y: Float32) -> bool:
        """Write the result for x (rows, in_features) to y (rows, out_features), both in host memory, without the GIL.
        False if the shapes do not match."""
    def replay_graphs(self) -> None:
        """Every graph once, before any batch: what the driver does with the first replay only is then done."""
    def capsule(self) -> object: ...
    @property
    def device_bytes(self) -> int:
        """The size of buffers on the device; weights belong to the caller."""

def unavailable() -> str:
    """Why there is no GPU to use; empty if there is one."""

def device_count() -> int:
    """The GPUs of the driver; opens none. Raises RuntimeError where there is no driver."""
