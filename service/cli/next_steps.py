# SPDX-License-Identifier: Apache-2.0
"""The text of `fused-mlp` without arguments. Imports neither typer nor rich: it is the first thing that people see."""

from __future__ import annotations

import os
import sys

_STEPS = (
    ("Serve the demo model", "fused-mlp serve"),
    ("Call it, in another terminal", "fused-mlp predict digits --example"),
    ("Import your own model", "fused-mlp import model.py:make_net -r repo -n net"),
)
_REST = "All commands: fused-mlp --help. Tab completion: fused-mlp --install-completion"


def print_next_steps() -> None:
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    bold, cyan, dim, end = ("\033[1m", "\033[36m", "\033[2m", "\033[0m") if colour else ("",) * 4
    print(f"{bold}fused-mlp{end} serves multi-layer perceptrons over gRPC and REST, fused into one kernel.\n")
    for number, (what, command) in enumerate(_STEPS, 1):
        print(f"  {bold}{number}{end}  {what:<30}{cyan}{command}{end}")
    print(f"\n{dim}{_REST}{end}")
