# SPDX-License-Identifier: Apache-2.0
"""The results of a profile, as plain records that become JSON. Knows neither measurement nor display."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

VariantName = Literal["eager", "compile", "fused"]
PROFILED: tuple[VariantName, ...] = ("eager", "compile", "fused")
RegimeName = Literal["overhead", "memory", "compute"]


class ProfileError(Exception):
    """The request cannot be profiled. The text is one line: what was expected, what was given."""


@dataclass(frozen=True)
class Counts:
    """One forward pass, counted in the profiler's events."""

    operators: dict[str, int]  # dispatched, by name, nested ones too
    bookkeeping: int  # those that do no work: views, wrappers, allocations
    launches: dict[str, int]  # operators that compute, or kernels on a GPU, by name
    device_us: float | None
    bytes_allocated: int
    bytes_moved: int  # read and written by the launches
    bytes_moved_known: bool  # False: a lower bound, because the inputs of generated code are not in the trace

    @property
    def dispatched(self) -> int:
        return sum(self.operators.values())

    @property
    def launched(self) -> int:
        return sum(self.launches.values())


@dataclass(frozen=True)
class Regime:
    """The bound of a forward pass: the largest of three times that it cannot avoid."""

    name: RegimeName
    overhead_us: float  # calling the same steps without arithmetic
    memory_us: float  # reading the weights, at the bandwidth measured
    compute_us: float  # the arithmetic, at the peak measured
    reached: float  # the bounding time as a share of the time taken: 1.0 is the limit itself

    @property
    def explains(self) -> bool:
        """Whether the limit is at least half of the measured time."""
        return self.reached >= 0.5

    @property
    def arithmetic_us(self) -> float:
        return max(self.memory_us, self.compute_us)


@dataclass(frozen=True)
class Point:
    """One variant at one batch size."""

    variant: VariantName
    batch: int
    time_us: float  # per forward pass, best of many, without the profiler
    cpu_us: float  # processor time of all threads, of the same run
    counts: Counts
    regime: Regime
    speedup: float  # over eager
    kernel_us: float | None = None  # of fused: its kernel called with an array, without torch around it

    @property
    def overhead_share(self) -> float:
        return min(1.0, self.regime.overhead_us / self.time_us)


@dataclass(frozen=True)
class StepCost:
    """A step of the program at one batch size, with the steps that the epilogue of its product finishes."""

    batch: int
    name: str
    what: str  # `256 gelu`, `ln`, `+`
    flops: int
    weight_bytes: int
    limit_us: float  # the larger of its arithmetic and of reading its weights, at the limits measured
    fused_us: float | None  # in the fused kernel, under the profiler; None if it was not told apart
    precision: str | None = None  # of its matrix in the fused kernel


@dataclass(frozen=True)
class Flame:
    """A tree of times: microseconds of one forward pass under the profiler, children inside their parent."""

    name: str
    us: float
    count: int
    children: tuple[Flame, ...] = ()
    category: str = ""  # of the span in the trace


@dataclass(frozen=True)
class Profile:
    model: str
    parameters: int
    device: str
    threads: int
    machine: dict[str, Any]
    torch: str
    flops_per_s: float
    bytes_per_s: float  # reading the weights in float32
    kernel: str  # description of the fused kernel
    batches: tuple[int, ...]
    points: tuple[Point, ...]
    failures: dict[str, str]  # variant -> why it has no points, in one line
    advice: tuple[str, ...]  # one sentence per batch size
    problems: tuple[str, ...] = ()  # each makes the times invalid
    notes: tuple[str, ...] = ()  # each limits what the times mean
    precision: str = "float32"  # of the weights that the fused kernel multiplies
    compared: str = ""  # in words: which variant runs which weights, where they differ
    int8_ops_per_s: float | None = None  # where the fused kernel multiplies int8
    # Reading the weights as the fused kernel keeps them, if in fewer bits.
    fused_bytes_per_s: float | None = None
    steps: tuple[StepCost, ...] = ()
    flames: dict[str, Flame] = field(default_factory=dict)  # "eager/1" -> its flame graph
    traces: dict[str, str] = field(default_factory=dict)  # the same keys -> file

    def point(self, variant: VariantName, batch: int) -> Point | None:
        for point in self.points:
            if (point.variant, point.batch) == (variant, batch):
                return point
        return None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
