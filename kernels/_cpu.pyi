"""The compiled CPU kernel (csrc/module.cpp). Used through `kernels.compile`; nothing else imports it."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
_Array = TypeVar("_Array")

class Layer:
    """Borrowed weights of one layer: weight (out, in), bias (out,), float32 and C-contiguous."""
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
    """Packs the layers. Raises ValueError for an unknown activation or instruction set."""
    def __init__(
        self,
        layers: Sequence[Layer],
        output_activation: str,
        output_slope: float,
        threads: int,
        isa: str | None = None,
    ) -> None: ...
    def call_numpy(self, x: _Array, out: _Array | None = None) -> _Array | None:
        """The result for x as a new array, or in `out`. None, and nothing written, unless x and out are
        numpy arrays, float32, C-contiguous and of fitting shape."""
    def run(self, x: Float32, y: Float32) -> bool:
        """Write the result for x (rows, in_features) to y (rows, out_features), without the GIL. False where
        the shapes do not fit, TypeError unless both are float32, C-contiguous and on the CPU."""
    def run_at(self, x: int, rows: int, y: int) -> None:
        """`run` on addresses, for callers that have made all of its checks themselves."""
    def strategy(self, rows: int) -> str: ...
    def capsule(self) -> object: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...

def usable_isas() -> list[str]: ...
def start_recording_phases(capacity: int) -> None:
    """Record what every kernel of this process does from now on, at most `capacity` spans of it."""

def stop_recording_phases() -> tuple[
    list[tuple[str, int, int, int, int, int, int, int, int, int, int, int]], int
]:
    """What was recorded, and how many spans found no room. A span: phase, layer, thread, rows, in, out, start_ns,
    end_ns (of time.monotonic_ns), product_ns, epilogue_ns, tiles, flops."""

def probe_flops(threads: int) -> float:
    """Floating point operations per second, one measurement of about a millisecond."""

def probe_read_seconds(bytes: int, threads: int, samples: int) -> float:  # noqa: A002
    """To read that many bytes once, wherever repeated reading keeps them; the best of some samples."""
