# SPDX-License-Identifier: Apache-2.0
"""How far each precision is from float64: `python -m bench.kernels.errors` (half a minute). Random weights and rows;
a difference is measured in units of the largest output of its row, as docs/models/precision.md says of imports. Takes
no times, so that other work on the machine does not matter."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from bench.kernels.engines import PACKAGES, PRECISION_ENGINES
from bench.kernels.shapes import ALL, PRECISION_SHAPES, build
from bench.provenance import describe_run, write_result
from fused_mlp.models import Mlp
from fused_mlp.models.program.evaluation import evaluate

RESULTS = Path(__file__).parent.parent / "results" / "precision-errors.json"
ROWS = 64


def error_of(engine: str, mlp: Mlp, x: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    answer = PRECISION_ENGINES[engine](mlp, 1)(x)()
    outputs = np.asarray(answer[0] if isinstance(answer, list | tuple) else answer, np.float64)
    units = np.abs(exact).max(axis=1, keepdims=True)
    shares = np.abs(outputs - exact) / units
    return {"largest": float(shares.max()), "mean": float(shares.mean())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kernels.errors", description=__doc__)
    parser.add_argument(
        "--shapes", nargs="+", choices=list(ALL), default=list(PRECISION_SHAPES), metavar="SHAPE"
    )
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console()
    cells: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for shape in track(options.shapes, "errors", console=console):
        mlp = build(shape)
        x = np.random.default_rng(7).standard_normal((options.rows, mlp.spec.in_features), dtype=np.float32)
        exact = evaluate(mlp, x.astype(np.float64))
        errors = {}
        for engine in PRECISION_ENGINES:
            try:
                errors[engine] = error_of(engine, mlp, x, exact)
            except ImportError as error:
                left_out[engine] = str(error)
        cells.append({"shape": shape, "errors": errors})
    result = describe_run("bench.kernels.errors", PACKAGES)
    write_result(options.output, {**result, "rows": options.rows, "left_out": left_out, "cells": cells})
    for cell in cells:
        said = ", ".join(f"{name} {100 * each['largest']:.3g} %" for name, each in cell["errors"].items())
        console.print(f"{cell['shape']}: {said}", highlight=False)


if __name__ == "__main__":
    main()
