# SPDX-License-Identifier: Apache-2.0
"""What weights in fewer bits bring end to end: one server for each precision, all up at once, in turns."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, get_args

from rich.console import Console

from bench.serving.load import LOADS, Load, measure, request_for, write_frame
from bench.serving.systems import service
from fused_mlp.models.quantization import Precision

MODEL = "mnist"
Samples = dict[str, dict[str, list[dict[str, float]]]]


def measure_precision(
    repository: Path, options: argparse.Namespace, folder: Path, console: Console
) -> Samples:
    """By precision and outstanding requests."""
    frame = write_frame(folder / "precision.frame", request_for(MODEL, 1).SerializeToString())
    samples: Samples = {name: {str(n): [] for n in LOADS} for name in get_args(Precision)}
    with ExitStack() as stack:
        systems = [
            stack.enter_context(service(name, repository, options.priority, front="native", precision=name))
            for name in samples
        ]
        for turn in range(options.rounds):
            for outstanding in LOADS:
                for system in systems:
                    load = Load(frame, *LOADS[outstanding], options.priority)
                    sample = measure(system, load, options.seconds)
                    samples[system.name][str(outstanding)].append(sample.as_dict())
                    console.print(
                        f"[dim]round {turn + 1}, {outstanding} outstanding: {system.name} {sample.rate:,.0f} req/s"
                    )
    return samples


def precision_table(samples: Samples) -> str:
    """Medians over the rounds."""
    lines = [
        "| outstanding | precision | req/s | relative to float32 | CPU per request | p50 |",
        "|---:|---|---:|---:|---:|---:|",
    ]

    def of(name: str, outstanding: str, key: str) -> Any:
        return median(sample[key] for sample in samples[name][outstanding])

    for outstanding in samples["float32"]:
        for name in samples:
            rate, plain = (of(each, outstanding, "rate") for each in (name, "float32"))
            lines.append(
                f"| {outstanding} | {name} | {rate:,.0f} | {rate / plain:.2f}x "
                f"| {of(name, outstanding, 'cpu_us'):.1f} us | {of(name, outstanding, 'p50_ms'):.2f} ms |"
            )
    return "\n".join(lines)
