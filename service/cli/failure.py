# SPDX-License-Identifier: Apache-2.0
"""How a command fails: one line on stderr that says what to do, and an exit code."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from fused_mlp.service.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from fused_mlp.service.client import PredictError


def fail(message: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    prefix = "\033[1;31merror: \033[0m" if colour else "error: "
    print(prefix + " ".join(message.split()), file=sys.stderr)
    raise SystemExit(int(code))


def misuse(message: str) -> NoReturn:
    """For options and arguments that are wrong."""
    fail(message, ExitCode.USAGE)


def explain(error: PredictError, *, admin: bool = False) -> str:  # noqa: PLR0911 - a table of errors
    """What a failed call means for the person at the command line, and what to do about it."""
    if "HTTP/2" in error.message or "http2" in error.message:
        return f"{error.target} is no gRPC port, perhaps that for REST or metrics; name the right one with --target"
    if error.unreachable and ":" not in error.target:
        return f"{error.message}; --target is HOST:PORT, such as {error.target}:{8003 if admin else 8001}"
    if error.unreachable and admin:
        return (
            f"{error.message}; is the server started with FUSED_MLP_ADMIN_PORT? --target names another port"
        )
    if error.code.name == "UNIMPLEMENTED" and admin:
        return f"{error.target} is no admin port: start the server with FUSED_MLP_ADMIN_PORT, and name that"
    if error.unreachable:
        return f"{error.message}; start a server with `fused-mlp serve`, or name another with --target"
    if error.code.name == "NOT_FOUND" and not admin:
        return f"{error.message}; `fused-mlp models --target {error.target}` lists those that are"
    if error.code.name == "DEADLINE_EXCEEDED":
        return f"{error.target} did not answer in time ({error.message}); --timeout gives it longer"
    return str(error)
