# SPDX-License-Identifier: Apache-2.0
"""How commands end: the exit codes, of which `fused-mlp --help` and docs/operations/commands.md show the table, and
failures, which are one line on stderr that says what to do."""

from __future__ import annotations

import os
import sys
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from fused_mlp.service.client import PredictError


class ExitCode(IntEnum):
    brief: str
    text: str

    def __new__(cls, number: int, brief: str, text: str) -> ExitCode:
        code = int.__new__(cls, number)
        code._value_, code.brief, code.text = number, brief, text
        return code

    DONE = 0, "done", "The command did what it was asked to; `health`: it is serving."
    FAILED = (
        1,
        "failed",
        "The command failed, and one line on stderr says why. `health`: it is not serving. `serve`: a bad setting. "
        "`pin`, `rollback`: in force, but a restart undoes it.",
    )
    USAGE = 2, "wrong options", "An option or argument is wrong; nothing was done."
    WENT_BACK = (
        3,
        "went back",
        "`canary`, `ray rollout`: the new version was worse, was stopped or did not start. The old one serves.",
    )
    NOT_VALID = (
        4,
        "figures not valid",
        "`ab`: measured, but the figures are not valid; the last line says why.",
    )
    HUNG_UP = (
        129,
        "SIGHUP",
        "Ended by SIGHUP: the terminal was closed. `serve` may read its files again instead.",
    )
    INTERRUPTED = 130, "Ctrl-C", "Ended by Ctrl-C. Nothing half written stays."
    TERMINATED = 143, "SIGTERM", "Ended by SIGTERM. `serve` answers what it has accepted, and exits with 0."


def printable(text: str) -> str:
    """Files and servers choose names and labels: none of them commands the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def fail(message: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    prefix = "\033[1;31merror: \033[0m" if colour else "error: "
    print(prefix + printable(" ".join(message.split())), file=sys.stderr)
    raise SystemExit(int(code))


def misuse(message: str) -> NoReturn:
    """For options and arguments that are wrong."""
    fail(message, ExitCode.USAGE)


def explain(error: PredictError, *, admin: bool = False) -> str:  # noqa: PLR0911 - a table of errors
    """Explains a failed call and what to do about it."""
    if "HTTP/2" in error.message or "http2" in error.message:
        return f"{error.target} is not a gRPC port but perhaps the REST or metrics port; --target names another one"
    if error.unreachable and ":" not in error.target:
        return f"{error.message}; --target is HOST:PORT, such as {error.target}:{8003 if admin else 8001}"
    if error.unreachable and admin:
        return (
            f"{error.message}; is the server started with FUSED_MLP_ADMIN_PORT? --target names another port"
        )
    if error.code.name == "UNIMPLEMENTED" and admin:
        return f"{error.target} is not an admin port: start the server with FUSED_MLP_ADMIN_PORT and name that port"
    if error.unreachable:
        return f"{error.message}; start a server with `fused-mlp serve`, or name another with --target"
    if error.code.name == "NOT_FOUND" and not admin:
        return f"{error.message}; `fused-mlp models --target {error.target}` lists those that are"
    if error.code.name == "DEADLINE_EXCEEDED":
        return f"{error.target} did not answer in time ({error.message}); --timeout waits longer"
    return str(error)
