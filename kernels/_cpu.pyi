"""Stub of the compiled CPU kernel (kernels/csrc), which `fused_mlp.kernels` uses."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
_Array = TypeVar("_Array")

class Layer:
    """The weights of one layer, not copied: weight (out, in), bias (out,), float32, C-contiguous."""
    def __init__(
        self,
        weight: Float32,
        bias: Float32 | None,
        gate_weight: Float32 | None,
        gate_bias: Float32 | None,
        activation: str,
        negative_slope: float,
    ) -> None: ...

class Kernel:
    """Packs a copy of the layers. Raises ValueError for an unknown activation or instruction set."""
    def __init__(
        self,
        layers: Sequence[Layer],
        output_activation: str,
        output_slope: float,
        threads: int,
        isa: str | None = None,
    ) -> None: ...
    def call_numpy(self, x: _Array, out: _Array | None = None) -> _Array | None:
        """Returns the result for x in a new array or in `out`. Returns None and writes nothing unless x and out are
        numpy arrays, float32, C-contiguous and of matching shape."""
    def run(self, x: Float32, y: Float32) -> bool:
        """Write the result for x (rows, in_features) to y (rows, out_features), without the GIL. False if the
        shapes do not match. Raises TypeError unless both are float32, C-contiguous and on the CPU."""
    def run_at(self, x: int, rows: int, y: int) -> None:
        """`run` on addresses, without its checks."""
    def strategy(self, rows: int) -> str: ...
    def capsule(self) -> object: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...

def usable_isas() -> list[str]:
    """The instruction sets that this machine can run, best first."""

def start_recording_phases(capacity: int) -> None:
    """Record the phases of all kernels of this process, at most `capacity` spans."""

def stop_recording_phases() -> tuple[
    list[tuple[str, int, int, int, int, int, int, int, int, int, int, int]], int
]:
    """The recorded spans and the number of dropped ones. A span: phase, layer, thread, rows, in, out, start_ns, end_ns
    (of time.monotonic_ns), product_ns, epilogue_ns, tiles, flops."""

def probe_flops(threads: int) -> float:
    """Floating point operations per second, from one measurement of about a millisecond."""

def probe_read_seconds(bytes: int, threads: int, samples: int) -> float:  # noqa: A002
    """Seconds to read `bytes` once, from the cache level (or memory) that holds them; the best of `samples`."""
