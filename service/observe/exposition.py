"""Metric families as text for Prometheus: a name, a help text, and a function that reads what a scrape shows. A family
that a scrape does not ask for is not read. Knows neither models nor the engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Generic, Protocol, TypeVar

S = TypeVar("S")  # what a scrape reads

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def label_text(**labels: str) -> str:
    return ",".join([f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items()])


class Counted(Protocol):
    """A histogram: `buckets` are not cumulative and end with +Inf."""

    @property
    def buckets(self) -> list[int]: ...
    @property
    def sum(self) -> int: ...


@dataclass(frozen=True)
class Family(ABC, Generic[S]):
    """`name`: without the suffixes that its series have."""

    name: str
    help: str
    kind: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ("",)

    @abstractmethod
    def lines(self, scrape: S) -> Iterator[str]: ...

    def text(self, scrape: S, names: Collection[str], openmetrics: bool) -> str:
        """`names`: of families or series, none for all. Empty where there is nothing to tell."""
        series = {self.name + suffix for suffix in self.suffixes}
        whole = not names or self.name in names
        wanted = series if whole else series.intersection(names)
        if not wanted:
            return ""
        lines = list(self.lines(scrape))
        if wanted != series:  # parts of a histogram are none: each is told by itself
            kind = "unknown" if openmetrics else "untyped"
            parts = {name: [line for line in lines if line.startswith(name + "{")] for name in sorted(wanted)}
            return "".join(self._told(name, kind, part) for name, part in parts.items())
        title = self.name if openmetrics or len(self.suffixes) > 1 else self.name + self.suffixes[0]
        return self._told(title, self.kind, lines)

    def _told(self, title: str, kind: str, lines: list[str]) -> str:
        if not lines:
            return ""
        return f"# HELP {title} {self.help}\n# TYPE {title} {kind}\n" + "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Gauge(Family[S]):
    """`read`: labels, as text, and values."""

    read: Callable[[S], Iterable[tuple[str, float]]]
    kind = "gauge"

    def lines(self, scrape: S) -> Iterator[str]:
        name = self.name + self.suffixes[0]
        for labels, value in self.read(scrape):
            yield f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"


class Counter(Gauge[S]):
    kind = "counter"
    suffixes = ("_total",)


@dataclass(frozen=True)
class Histogram(Family[S]):
    """`bounds`: of all buckets; `shown`: those that a scrape has. They stay the same while the process lives: sums over
    `le` need the same buckets of all series. `unit`: what bounds and sums are divided by."""

    bounds: tuple[int, ...]
    shown: Callable[[S], Collection[int]]
    unit: float
    read: Callable[[S], Iterable[tuple[str, Counted]]]
    kind = "histogram"
    suffixes = ("_bucket", "_sum", "_count")

    def lines(self, scrape: S) -> Iterator[str]:
        shown = self.shown(scrape)
        buckets = [
            (number, f'{self.name}_bucket{{le="{bound / self.unit:g}",')
            for number, bound in enumerate(self.bounds)
            if bound in shown
        ]
        buckets.append((len(self.bounds), f'{self.name}_bucket{{le="+Inf",'))
        for labels, counted in self.read(scrape):
            counts = list(accumulate(counted.buckets))
            for number, begin in buckets:
                yield f"{begin}{labels}}} {counts[number]}"
            yield f"{self.name}_sum{{{labels}}} {counted.sum / self.unit}"
            yield f"{self.name}_count{{{labels}}} {counts[-1]}"
