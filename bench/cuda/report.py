# SPDX-License-Identifier: Apache-2.0
"""The report of the GPU benchmark: a table on the terminal, one for the README, and a few lines that
say where fusion wins and where it does not."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.kernels.report import geometric_mean, number

PEERS = ("eager", "torch.compile", "torch.compile, graphs")


def _times(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{ratio:.2f}x"


def _candidates(cell: dict[str, Any]) -> dict[str, float]:
    return {name: us for name, us in cell["device_us"].items() if name not in PEERS}


def _against(cell: dict[str, Any], peers: tuple[str, ...]) -> float:
    """How many times as long as the strategy that serves the best of `peers` takes, on the device; NaN when
    either could not be measured."""
    us = cell["device_us"]
    others = [us[name] for name in peers if name in us]
    return min(others) / us[cell["chosen"]] if others and cell["chosen"] in us else math.nan


def show(console: Console, result: dict[str, Any]) -> None:
    gpu = result["gpu"]
    table = Table(
        title=f"{gpu['name']} ({gpu['capability']}): microseconds per forward; * serves", title_justify="left"
    )
    for heading in (
        "shape",
        "dtype",
        "rows",
        "strategies",
        *PEERS,
        "vs eager",
        "vs best",
        "served",
        "unfused",
    ):
        table.add_column(heading, justify="left" if heading in ("shape", "dtype", "strategies") else "right")
    before = None
    for cell in result["cells"]:
        if before not in (None, (cell["shape"], cell["dtype"])):
            table.add_section()
        before = (cell["shape"], cell["dtype"])
        strategies = "  ".join(
            f"{name}{'*' if name == cell['chosen'] else ''} {number(us)}"
            for name, us in _candidates(cell).items()
        )
        best = _against(cell, PEERS)
        table.add_row(
            cell["shape"],
            cell["dtype"],
            str(cell["rows"]),
            strategies,
            *(number(cell["device_us"].get(name)) for name in PEERS),
            _times(_against(cell, ("eager",))),
            f"[{'green' if best >= 1 else 'red'}]{_times(best)}[/]",
            number(cell["served_us"]["fused"]),
            number(cell["served_us"]["unfused"]),
        )
    console.print(table)


def summary(result: dict[str, Any]) -> list[str]:
    """Means, every point that is lost, and every point where another strategy would have served better, or one
    failed."""
    cells = result["cells"]
    lines = []
    for dtype in dict.fromkeys(cell["dtype"] for cell in cells):
        mine = [cell for cell in cells if cell["dtype"] == dtype]
        eager = geometric_mean([_against(cell, ("eager",)) for cell in mine])
        best = geometric_mean([_against(cell, PEERS) for cell in mine])
        served = geometric_mean([cell["served_us"]["unfused"] / cell["served_us"]["fused"] for cell in mine])
        lines.append(
            f"{dtype}, geometric mean over {len(mine)} points: {eager:.2f}x eager, {best:.2f}x the best of all; "
            f"as served, copies included, {served:.2f}x unfused"
        )
    lost = [cell for cell in cells if _against(cell, PEERS) < 1]
    lines.append(
        f"slower than the best of the others at {len(lost)} of {len(cells)} points"
        + "".join(f"; {_name(cell)} {_against(cell, PEERS):.2f}x" for cell in lost)
    )
    for cell in cells:
        lines += [f"{_name(cell)}: {label} is out: {why}" for label, why in cell["failed"].items()]
        if cell["chosen"] not in cell["device_us"]:
            continue
        best, us = min(_candidates(cell).items(), key=lambda item: item[1])
        ratio = cell["device_us"][cell["chosen"]] / us
        if ratio > 1.1:  # less is noise, or the price of one strategy for all batch sizes
            lines.append(
                f"{_name(cell)}: {best} would be {ratio:.2f}x as fast as {cell['chosen']}, which serves"
            )
    return lines


def _name(cell: dict[str, Any]) -> str:
    return f"{cell['shape']} {cell['dtype']} {cell['rows']} rows"


def markdown_table(result: dict[str, Any]) -> str:
    lines = [
        f"| shape | dtype | rows | **fused** | {' | '.join(PEERS)} | vs eager | vs best other |",
        "|---|---|" + "---:|" * (len(PEERS) + 4),
    ]
    for cell in result["cells"]:
        times = [f"**{number(cell['device_us'].get(cell['chosen']))}**"]
        times += [number(cell["device_us"].get(name)) for name in PEERS]
        lines.append(
            f"| {cell['shape']} | {cell['dtype']} | {cell['rows']} | {' | '.join(times)} | "
            f"{_times(_against(cell, ('eager',)))} | {_times(_against(cell, PEERS))} |"
        )
    return "\n".join(lines)
