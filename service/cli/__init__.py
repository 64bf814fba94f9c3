# SPDX-License-Identifier: Apache-2.0
"""The command line, `fused-mlp`. Imports little: `health` runs every few seconds in a container, and no command may
require the packages of another one."""

from __future__ import annotations

import atexit
import os
import signal
import sys

_COMPLETE = "_FUSED_MLP_COMPLETE"  # set by a shell that asks for completions


def main() -> None:
    arguments = sys.argv[1:]
    if _COMPLETE in os.environ:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - what is wrong with a half typed line does not matter yet
    elif not arguments:
        from fused_mlp.service.cli.next_steps import print_next_steps

        print_next_steps()
        return
    if arguments[:1] == ["serve"]:
        # Process 1 of a container has no default action for signals: without a handler they are lost.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: os._exit(128 + number))
    else:
        from fused_mlp.service.cli.interruption import raise_on_signals

        raise_on_signals()
    try:
        _run(arguments)
    except KeyboardInterrupt as error:  # raised before a command was found; a command handles it itself
        from fused_mlp.service.cli.interruption import leave

        _end(leave(error).code)
    except SystemExit as left:
        if isinstance(left.code, int) and left.code > 128:
            _end(left.code)
        raise


def _end(code: object) -> None:
    """Exits without waiting for other threads, unlike the normal end of Python."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue  # the reader has closed the pipe
    os._exit(code if isinstance(code, int) else 1)


def _run(arguments: list[str]) -> None:
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
