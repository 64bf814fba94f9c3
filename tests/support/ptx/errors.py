# SPDX-License-Identifier: Apache-2.0
"""What the interpreter refuses. Each error names the line of PTX."""

from __future__ import annotations


class PtxError(Exception):
    """A kernel did what a GPU would punish, or what no rule says the result of."""


class UnknownInstruction(PtxError):
    """An instruction, operand or form that the interpreter has no rule for."""


class BadAccess(PtxError):
    """Outside of every allocation, or not aligned to its own size."""


class Race(PtxError):
    """Two warps touched the same bytes, one of them to write, with no barrier between."""


class Stuck(PtxError):
    """Some threads of a block wait for a barrier that the others never reach."""
