# SPDX-License-Identifier: Apache-2.0
"""The gain of int8 and bfloat16 weights end to end: one server for each precision, all up at once, in turns."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from bench.serving.load import LOADS, Load, measure, request_for, write_frame
from bench.serving.systems import service
from bench.summary import medians_by_load
from fused_mlp.models.weights.quantization import Precision

MODEL = "mnist"
Medians = dict[str, dict[str, dict[str, float]]]


def measure_precision(
    repository: Path, options: argparse.Namespace, folder: Path, console: Console
) -> Medians:
    """By precision and outstanding requests, over the rounds."""
    frame = write_frame(folder / "precision.frame", request_for(MODEL, 1).SerializeToString())
    samples: dict[str, dict[str, list[Any]]] = {
        name: {str(n): [] for n in LOADS} for name in get_args(Precision)
    }
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
    return medians_by_load(samples)
