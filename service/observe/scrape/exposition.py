# SPDX-License-Identifier: Apache-2.0
"""Metric families as text for Prometheus: a name, a help text, and a function that reads the values. A family that a
scrape does not ask for is not read. The text is made in pieces, so that no step holds the GIL for long. Knows no
models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Generic, TypeVar

from fused_mlp.service._engine import HistogramSnapshot, histogram_text

S = TypeVar("S")  # the values that a scrape reads

PER_PIECE = 256  # series

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def label_text(**labels: str) -> str:
    return ",".join([f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items()])


@dataclass(frozen=True)
class Family(ABC, Generic[S]):
    """`name`: without the suffixes that its series have."""

    name: str
    help: str
    kind: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ("",)

    @abstractmethod
    def lines(self, scrape: S, suffixes: Sequence[str], openmetrics: bool) -> Iterator[bytes]:
        """Yields the text of the series with these suffixes, piece by piece."""

    def text(self, scrape: S, names: Collection[str], openmetrics: bool) -> Iterator[bytes]:
        """`names`: of families or series; none means all. Yields nothing for a family without values."""
        wanted = [s for s in self.suffixes if not names or self.name in names or self.name + s in names]
        if len(wanted) == len(self.suffixes):
            title = self.name if openmetrics or len(wanted) > 1 else self.name + wanted[0]
            yield from self._with_head(title, self.kind, self.lines(scrape, wanted, openmetrics))
            return
        kind = "unknown" if openmetrics else "untyped"
        for suffix in wanted:  # each part of a histogram is a series, not a family
            yield from self._with_head(self.name + suffix, kind, self.lines(scrape, [suffix], openmetrics))

    def _with_head(self, title: str, kind: str, lines: Iterator[bytes]) -> Iterator[bytes]:
        head = f"# HELP {title} {self.help}\n# TYPE {title} {kind}\n".encode()
        for piece in lines:
            yield head + piece
            head = b""


@dataclass(frozen=True)
class Gauge(Family[S]):
    """`read`: labels, as text, and values."""

    read: Callable[[S], Iterable[tuple[str, float]]]
    kind = "gauge"

    def lines(self, scrape: S, suffixes: Sequence[str], openmetrics: bool) -> Iterator[bytes]:
        name = self.name + suffixes[0]
        lines = (
            f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"
            for labels, value in self.read(scrape)
        )
        while piece := "".join(islice(lines, PER_PIECE)):
            yield piece.encode()


class Counter(Gauge[S]):
    kind = "counter"
    suffixes = ("_total",)


@dataclass(frozen=True)
class Histogram(Family[S]):
    """`bounds`: of all buckets; `shown`: the ones in a scrape. Both stay the same while the process lives: sums over
    `le` need the same buckets in all series. Bounds and sums are divided by 10 to the power of `decimals`."""

    bounds: tuple[int, ...]
    shown: Callable[[S], Collection[int]]
    decimals: int
    read: Callable[[S], Iterable[tuple[str, HistogramSnapshot]]]
    kind = "histogram"
    suffixes = ("_bucket", "_sum", "_count")

    def lines(self, scrape: S, suffixes: Sequence[str], openmetrics: bool) -> Iterator[bytes]:
        shown, unit = self.shown(scrape), 10**self.decimals
        buckets = [(n, f"{bound / unit:g}") for n, bound in enumerate(self.bounds) if bound in shown]
        buckets.append((len(self.bounds), "+Inf"))
        series = iter(self.read(scrape))
        while some := list(islice(series, PER_PIECE)):
            yield histogram_text(self.name, some, buckets, self.decimals, suffixes, exemplars=openmetrics)
