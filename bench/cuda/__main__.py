# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernel on a GPU: every strategy that can run a model, what `auto` serves, eager PyTorch and
torch.compile. Run as `make bench-gpu`, on the GPU to be measured; most of the time goes to torch.compile.

Times are the device's, by CUDA events, inputs and outputs in its memory; the columns `served` and `unfused` are one
call of what the engine calls, from host memory and back, by the wall clock."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.cuda.engines import Subject
from bench.cuda.gpu_report import add_part, describe_run
from bench.cuda.report import markdown_table, show, summary
from bench.kernels.shapes import SHAPES
from fused_mlp.models import Dtype

RESULTS = Path(__file__).parent.parent / "results" / "cuda.json"
ROWS = (1, 16, 64, 256, 1024)
QUICK_ROWS = (1, 256)
DTYPES: tuple[Dtype, ...] = ("float32", "float16", "bfloat16")
# Large batches of a transformer block: the products take the time, not the launches.
LARGE = ("GeGLU 768-3072-768", "bfloat16", 8192)


def plan(arguments: argparse.Namespace) -> list[tuple[str, Dtype, tuple[int, ...]]]:
    """(shape, dtype, rows): everything asked for, and the large batch where its model is among it."""
    rows = tuple(arguments.rows or (QUICK_ROWS if arguments.quick else ROWS))
    work = []
    for shape in arguments.shapes:
        for dtype in arguments.dtypes:
            large = (LARGE[2],) if (shape, dtype) == LARGE[:2] and not arguments.rows else ()
            work.append((shape, dtype, (*rows, *large)))
    return work


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    result: dict[str, Any] = {
        **describe_run(" ".join(["python -m bench.cuda", *sys.argv[1:]])),
        "tf32": arguments.tf32,
        "cells": [],
    }
    torch.backends.cuda.matmul.allow_tf32 = arguments.tf32  # for all of them alike
    work = plan(arguments)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=sum(len(rows) for _, _, rows in work))
        for shape, dtype, batches in work:
            bar.update(task, description=f"loading {shape} {dtype}")
            subject = Subject(shape, dtype)
            for rows in batches:
                bar.update(task, description=f"{shape} {dtype}, {rows} rows")
                result["cells"].append(subject.measure(rows))
                bar.advance(task)
    return result


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cuda", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows only, and the large batch")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES), metavar="SHAPE")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--rows", type=int, nargs="+", default=None)
    parser.add_argument("--tf32", action="store_true", help="multiply float32 in TF32, everywhere")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--add-to", type=Path, default=None, help="a report to be sent back: adds the result")
    parser.add_argument("--report", action="store_true", help="measure nothing, show --output again")
    parser.add_argument("--markdown", action="store_true", help="print the table for the README")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    arguments = _arguments(given)
    console = Console(width=None if sys.stdout.isatty() else 200)
    if arguments.report:
        result = json.loads(arguments.output.read_text())
    elif not torch.cuda.is_available():
        raise SystemExit(
            f"bench.cuda: expected a GPU, but torch {torch.__version__} sees no CUDA device: run it on a machine "
            "with one and a CUDA build of torch (docs/internals/cuda.md)"
        )
    else:
        result = run(arguments, console)
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
        console.print(f"written to {arguments.output}")
        if arguments.add_to is not None:
            add_part(arguments.add_to, "bench", result)
    if arguments.markdown:
        print(markdown_table(result))
        return
    show(console, result)
    for line in summary(result):
        console.print(line, highlight=False)


if __name__ == "__main__":
    main()
