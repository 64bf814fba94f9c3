# SPDX-License-Identifier: Apache-2.0
"""Stub of the compiled CPU kernel (kernels/csrc), which `fused_mlp.kernels` uses."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Matrix = Float32 | NDArray[np.uint16] | NDArray[np.int8]
_Array = TypeVar("_Array")

# Where a value is: buffer (0 is x, 1 is y, the others are scratch) and first column.
_Place = tuple[int, int]
# A function as its steps: name, operands (registers, or -1 for the constant), register of the result, constant,
# parameters. Register 0 is x, and holds the result at the end. No steps: the identity.
_Steps = Sequence[tuple[str, Sequence[int], int, float, Sequence[float]]]

class Product:
    """then(function(input W^T + b) combined with another value), arrays not copied: weight (out, in), bias (out,),
    C-contiguous. Weights are float32, the bits of bfloat16, or int8, whose outputs have scales.
    Gated, if there is a gate_weight: function(gate(input G^T + g) * (input W^T + b))."""
    def __init__(
        self,
        *,
        weight: Matrix,
        bias: Float32 | None,
        gate_weight: Matrix | None,
        gate_bias: Float32 | None,
        scale: Float32 | None,
        gate_scale: Float32 | None,
        gate: _Steps,
        function: _Steps,
        input: _Place,  # noqa: A002
        output: _Place,
        free_to_the_right: bool,
        other: _Place | None,
        combination: str,
        swapped: bool,
        then: _Steps,
    ) -> None:
        """`free_to_the_right`: nothing that is still needed lies to the right of the output in its buffer.
        `swapped`: the other value is the first operand of the combination."""

class Row:
    """An operation row by row: map, combine, affine, layer, rms, l2, softmax, log_softmax, where, bucketize, argmax,
    number, pick, dot, reduce or repeat; then `then`. `width` is that of the result. `in_width`, `groups`, `count`,
    `reduction` and `flag` are those of RowOp in isa.hpp; the boundaries of bucketize are its weight."""
    def __init__(
        self,
        *,
        kind: str,
        width: int,
        input: _Place,  # noqa: A002
        output: _Place,
        other: _Place | None,
        combination: str,
        eps: float,
        weight: Float32 | None,
        bias: Float32 | None,
        then: _Steps,
        third: _Place | None = None,
        in_width: int = 0,
        groups: int = 1,
        count: int = 0,
        reduction: str = "sum",
        flag: bool = False,
    ) -> None: ...

class Lookup:
    """Rows of a table, (size, features) in float32, the bits of bfloat16, or int8 with a scale per row: those of `ids`
    ids side by side, or the sum, mean or max of a `bag`. The table is not copied."""
    def __init__(
        self,
        *,
        table: Matrix,
        scale: Float32 | None,
        input: _Place,  # noqa: A002
        ids: int,
        output: _Place,
        bag: str | None,
        padding: int,
        factors: _Place | None,
    ) -> None: ...

class Packer:
    """Runs a kernel on arrays of inputs, (name, values per row, size of the table or 0 for floats) each."""
    def __init__(self, inputs: Sequence[tuple[str, int, int]]) -> None: ...
    def call(self, kernel: Kernel, given: dict[str, object]) -> Float32 | None:
        """(rows, out_features). None unless `given` has exactly the inputs as C-contiguous arrays of as many rows:
        float32 for floats, int32 or int64 for ids, which are in range."""

class Kernel:
    """Packs a copy of the operations' arrays, but for tables; `scratch` are the widths of the scratch buffers. Several
    lookups are one operation. `limits`: of ids in the input, (first column, column after the last, size, whether -1 is
    allowed). `tables`: what is kept alive as long as the kernel. Raises ValueError for an unknown instruction set, and
    for operations outside of their buffers."""
    def __init__(
        self,
        in_features: int,
        out_features: int,
        scratch: Sequence[int],
        ops: Sequence[Product | Row | Sequence[Lookup]],
        threads: int,
        isa: str | None,
        limits: Sequence[tuple[int, int, int, bool]],
        tables: list[object],
    ) -> None: ...
    def call_numpy(self, x: _Array, out: _Array | None = None) -> _Array | None:
        """Returns the result for x in a new array or in `out`. Returns None and writes nothing unless x and out are
        numpy arrays, float32, C-contiguous and of matching shape, and all ids are within their limits."""
    def run(self, x: Float32, y: Float32) -> bool:
        """Write the result for x (rows, in_features) to y (rows, out_features), without the GIL. False if the
        shapes do not match. Raises TypeError unless both are float32, C-contiguous and on the CPU."""
    def run_groups(
        self, shared: list[tuple[int, int]], groups: list[tuple[Float32, Float32]], y: Float32
    ) -> bool:
        """`run` for groups of rows with words [first, last) in common: of each, these words once, side by side, and
        (rows, other words). False if the shapes do not match."""
    def run_at(self, x: int, rows: int, y: int) -> None:
        """`run` on addresses, without its checks."""
    def ids_fit_at(self, x: int, rows: int) -> bool:
        """Whether the ids of rows at an address are within their limits. `run` and `run_at` do not check them."""
    def strategy(self, rows: int) -> str:
        """The strategy of this thread's last run if it had so many rows; otherwise the planned one."""
    def strategies(self, most: int) -> list[tuple[str, int]]:
        """For batches of up to `most` rows: each strategy with the largest batch that uses it, in order."""
    def capsule(self) -> object: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def memory_bytes(self) -> int:
        """The size of packed weights and vectors."""

def usable_isas(int8: bool = False) -> list[str]:
    """The instruction sets that this machine can run, best first; those that differ only for int8, if asked for."""

def start_recording_phases(capacity: int) -> None:
    """Record the phases of all kernels of this process, at most `capacity` spans."""

def stop_recording_phases() -> tuple[
    list[tuple[str, int, int, int, int, int, int, int, int, int, int, int]], int
]:
    """The recorded spans and the number of dropped ones. A span: phase, operation, thread, rows, in, out, start_ns,
    end_ns (of time.monotonic_ns), product_ns, epilogue_ns, tiles, flops."""

def probe_flops(threads: int, int8: bool = False) -> float:
    """Operations per second of float32 or int8 multiply-adds, from one measurement of about a millisecond."""

def probe_read_seconds(bytes: int, threads: int, samples: int) -> float:  # noqa: A002
    """Seconds to read `bytes` once, from the cache level (or memory) that holds them; the best of `samples`."""

def probe_random_line_seconds(table: Float32, samples: int) -> float:
    """Seconds per cache line that is read from a table in random order, prefetched ahead; the best of `samples`."""
