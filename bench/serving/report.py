# SPDX-License-Identifier: Apache-2.0
"""What the serving benchmark found, for people: a table, and how it stands against the targets."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.serving.ab import change, percent

Result = dict[str, Any]
GRPC_ECHO, OWN_ECHO = "gRPC C++ echo", "native front, echo"
FUSED, UNFUSED, BASELINE = "native front, fused", "native front, unfused", "baseline: grpc.aio and torch"
UNCOUNTED = "native front, fused, metrics off"


def cell(result: Result, model: str, system: str, outstanding: int, field: str) -> float:
    """The median over the rounds."""
    samples = result["models"][model][system][str(outstanding)]
    return median(sample[field] for sample in samples)


def show(console: Console, result: Result) -> None:
    for model, systems in result["models"].items():
        table = Table(title=f"{model}: one row per request", title_justify="left")
        table.add_column("system")
        for outstanding in result["loads"]:
            table.add_column(f"{outstanding} outstanding: req/s", justify="right")
            table.add_column("p50 / p99 ms", justify="right")
            table.add_column("CPU us", justify="right")
            table.add_column("batch", justify="right")
        for system in systems:
            row = [system]
            for outstanding in result["loads"]:
                get = lambda field, m=model, o=outstanding, s=system: cell(result, m, s, o, field)  # noqa: E731
                batch = get("batch_rows")
                row += [
                    f"{get('rate'):,.0f}",
                    f"{get('p50_ms'):.3f} / {get('p99_ms'):.3f}",
                    f"{get('cpu_us'):.1f}",
                    f"{batch:.1f}" if batch else "",
                ]
            table.add_row(*row)
        console.print(table)


def markdown_table(result: Result, model: str) -> str:
    loads = result["loads"]
    lines = [
        "| system | " + " | ".join(f"{n} outstanding: req/s, p50 / p99 ms, CPU us" for n in loads) + " |",
        "|---|" + "---|" * len(loads),
    ]
    for system in result["models"][model]:
        cells = []
        for n in loads:
            get = lambda field, n=n, s=system: cell(result, model, s, n, field)  # noqa: E731
            cells.append(
                f"{get('rate'):,.0f}, {get('p50_ms'):.2f} / {get('p99_ms'):.2f}, {get('cpu_us'):.0f} us"
            )
        lines.append(f"| {system} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Target:
    text: str
    value: float
    wanted: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted

    def __str__(self) -> str:
        sign = "at most" if self.at_most else "at least"
        return f"{'met   ' if self.met else 'MISSED'} {self.text}: {self.value:.2f}, wanted {sign} {self.wanted:g}"


def targets(result: Result) -> list[Target]:
    found = []
    for model, wanted in (("mnist", 1.5), ("digits", 2.5)):
        if model not in result["models"]:
            continue

        def ratio(a: str, b: str, outstanding: int, field: str, model: str = model) -> float:
            return cell(result, model, a, outstanding, field) / cell(result, model, b, outstanding, field)

        found += [
            Target(
                f"{model}: fused / gRPC C++ echo, req/s at 128", ratio(FUSED, GRPC_ECHO, 128, "rate"), wanted
            ),
            Target(
                f"{model}: own echo / gRPC C++ echo, req/s at 128", ratio(OWN_ECHO, GRPC_ECHO, 128, "rate"), 4
            ),
            Target(
                f"{model}: fused / gRPC C++ echo, p50 at 1", ratio(FUSED, GRPC_ECHO, 1, "p50_ms"), 1.2, True
            ),
            Target(
                f"{model}: fused / baseline, req/s at 128",
                ratio(FUSED, BASELINE, 128, "rate"),
                20,
            ),
            Target(
                f"{model}: metrics off / on, req/s at 128", ratio(UNCOUNTED, FUSED, 128, "rate"), 1.01, True
            ),
            Target(f"{model}: fused / unfused, p50 at 1", ratio(FUSED, UNFUSED, 1, "p50_ms"), 0.7, True),
            Target(f"{model}: fused / unfused, req/s at 128", ratio(FUSED, UNFUSED, 128, "rate"), 1.3),
        ]
    if rows := result.get("many_rows"):
        for where, said in {"apart": "generator on other cores", "shared": "generator on the same"}.items():
            share = median(rows[where]["served_rows_per_s"]) / median(rows[where]["kernel_rows_per_s"])
            found.append(Target(f"mnist: 64 rows, share of the kernel's own rows/s, {said}", share, 0.85))
    if ab := result.get("ab"):
        for system, most in (("split on, in turn", 1), ("split on, by x-ab-key", 1), ("shadow 1 %", 3)):
            rate = change(ab, system, 128, "rate")
            said = f"{ab['model']}: {system}, % of req/s lost at 128 (change {percent(rate)})"
            found.append(Target(said, 100 * (1 - rate.value), most, True))
    return found
