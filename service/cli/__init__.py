# SPDX-License-Identifier: Apache-2.0
"""The command line, `fused-mlp`. Imports little: `health` runs every few seconds in a container, and no command
may need what only another one uses."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"]:
        # Process 1 of a container has no default action for signals: without a handler they are lost.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: os._exit(128 + number))
    try:
        if arguments[:1] == ["health"]:
            from fused_mlp.service.cli.quick_health import check_health_quickly

            check_health_quickly(arguments[1:])
        from fused_mlp.service.cli.program import app

        app(prog_name="fused-mlp")
    except ImportError as error:
        from fused_mlp.service.cli.failure import fail
        from fused_mlp.service.missing import explain_import

        explanation = explain_import(error, " ".join(["fused-mlp", *arguments[:1]]))
        if explanation is None:
            raise
        fail(explanation)
