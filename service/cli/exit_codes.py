# SPDX-License-Identifier: Apache-2.0
"""The exit codes of all commands. `fused-mlp --help` and docs/operations/commands.md are made from this table."""

from __future__ import annotations

from enum import IntEnum


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
        "The command failed, and one line on stderr says why. `health`: it is not serving. `serve`: a bad setting.",
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
