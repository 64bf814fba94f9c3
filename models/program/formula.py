# SPDX-License-Identifier: Apache-2.0
"""Functions of one value, as text: `relu`, `leaky_relu(x, 0.2)`, `x * sigmoid(1.702 * x)`. Owns their canonical
spelling, what each computes in numpy, and the instructions that kernels compile. Knows nothing of models; trees.py has
what they are made of."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from fused_mlp.models.program.activations import PRIMITIVES, Floats
from fused_mlp.models.program.trees import (
    BINARY,
    MAX_INSTRUCTIONS,
    PARAMETERS,
    SUGAR,
    SUGAR_DEFAULTS,
    FormulaError,
    Node,
    X,
    binary,
    call,
    constant,
    function,
    read,
    replaced,
    spelled_out,
    x,
)

__all__ = [
    "BINARY", "MAX_INSTRUCTIONS", "MAX_TEXT", "PARAMETERS", "SUGAR", "Formula", "FormulaError", "Instruction", "Node",
    "binary", "call", "constant", "of", "parse", "x",
]  # fmt: skip
MAX_TEXT = 1024
_SYMBOLS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_BLOCK = 16384  # values at a time, so that the temporaries stay in the cache


class Instruction(NamedTuple):
    """One operation on registers. Register 0 is x, instruction i writes register i + 1, and operand -1 - k is
    `Formula.constants[k]`. `numbers` are the parameters of a function (`leaky_relu`'s slope)."""

    op: str
    operands: tuple[int, ...]
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True)
class Formula:
    """A function of one value. Equal functions of the same spelling are equal; `text` is canonical."""

    text: str
    root: Node
    instructions: tuple[Instruction, ...]  # none for the identity
    constants: tuple[float, ...]

    @property
    def simple(self) -> tuple[str, tuple[float, ...]] | None:
        """(name, parameters) of a formula that is one function of x; None for the others."""
        if self.root.op in PARAMETERS and self.root.arguments == (X,):
            return self.root.op, self.root.numbers
        return None

    @property
    def is_identity(self) -> bool:
        return self.root == X

    def __call__(self, x: Floats) -> Floats:
        """In the dtype of x (float32 or float64), any shape."""
        flat = x.reshape(-1)
        result = np.empty_like(flat)
        with np.errstate(all="ignore"):
            for start in range(0, flat.size, _BLOCK):
                block = slice(start, start + _BLOCK)
                result[block] = self._run(flat[block])
        return result.reshape(x.shape)

    def _run(self, x: Floats) -> Floats:
        registers: list[Any] = [x]
        constants = [x.dtype.type(value) for value in self.constants]
        for each in self.instructions:
            operands = [registers[at] if at >= 0 else constants[-1 - at] for at in each.operands]
            registers.append(PRIMITIVES[each.op](*operands, *map(x.dtype.type, each.numbers)))
        value: Floats = registers[-1]
        return value

    def then(self, other: Formula) -> Formula:
        """other(self(x))."""
        return of(replaced(other.root, self.root))

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=4096)
def parse(text: str) -> Formula:
    """The formula that `text` spells; FormulaError says what is wrong with it."""
    if len(text) > MAX_TEXT:
        raise FormulaError(f"function of {len(text)} characters: expected at most {MAX_TEXT}")
    if text in (
        "x",
        "identity",
    ):  # plain names need no parser: most models of a server have no other functions
        return of(X)
    if text in PARAMETERS and None not in PARAMETERS[text]:
        return of(function(text, (X,)))
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise FormulaError(
            f"function {_short(text)!r}: expected a formula such as relu or x * sigmoid(x)"
        ) from None
    try:
        body = tree.body
        if isinstance(body, ast.Name) and body.id != "x":  # `relu` is relu(x)
            return of(function(body.id, (X,)))
        return of(read(body, {"x": X}))
    except FormulaError as error:
        raise FormulaError(f"function {_short(text)!r}: {error}") from None
    except RecursionError:
        raise FormulaError(f"function {_short(text)!r}: nested too deeply") from None
    except OverflowError:  # a whole number of hundreds of digits
        raise FormulaError(f"function {_short(text)!r}: expected finite numbers") from None


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def of(root: Node) -> Formula:
    """The formula with this tree."""
    instructions: list[Instruction] = []
    constants: list[float] = []
    registers: dict[Node, int] = {X: 0}

    def place(node: Node) -> int:
        """The operand that holds it; a tree that occurs twice is computed once."""
        if node not in registers:
            if node.op == "constant":
                (value,) = node.numbers
                if not math.isfinite(value):
                    raise FormulaError(f"expected finite numbers, got {value}")
                constants.append(value)
                registers[node] = -len(constants)
            else:
                operands = tuple(place(each) for each in node.arguments)
                if not all(map(math.isfinite, node.numbers)):
                    raise FormulaError(f"{node.op}: expected finite numbers, got {node.numbers}")
                instructions.append(Instruction(node.op, operands, node.numbers))
                registers[node] = len(instructions)
        return registers[node]

    if place(root) < 0:
        raise FormulaError("it does not depend on x")
    if len(instructions) > MAX_INSTRUCTIONS:
        raise FormulaError(f"{len(instructions)} operations: expected at most {MAX_INSTRUCTIONS}")
    text = _spell(root)
    if len(text) > MAX_TEXT:
        raise FormulaError(f"{len(text)} characters: expected at most {MAX_TEXT}")
    return Formula(text, root, tuple(instructions), tuple(constants))


def _spell(root: Node) -> str:
    """The canonical text: a name where there is one, defaults left out."""
    if root.op in PARAMETERS and root.arguments == (X,) and root.numbers == PARAMETERS[root.op]:
        return root.op
    if root == X:
        return "x"
    return _sugar_names().get(root) or _write(root, 0)


@cache
def _sugar_names() -> dict[Node, str]:
    """The name of every formula that has one without parameters."""
    return {
        spelled_out(name, X, ()): name for name in SUGAR if name != "identity" and name not in SUGAR_DEFAULTS
    }


_PRECEDENCE = {"add": 1, "subtract": 1, "multiply": 2, "divide": 2}


def _write(node: Node, outer: int) -> str:
    if node.op == "x":
        return "x"
    if node.op == "constant":
        text = _number(node.numbers[0])
        return f"({text})" if outer and text.startswith("-") else text
    if node.op in _SYMBOLS:
        level = _PRECEDENCE[node.op]
        left, right = node.arguments
        text = f"{_write(left, level)} {_SYMBOLS[node.op]} {_write(right, level + 1)}"
        return f"({text})" if level < outer else text
    numbers = node.numbers
    if node.op in PARAMETERS and numbers == PARAMETERS[node.op]:
        numbers = ()
    inside = [*(_write(each, 0) for each in node.arguments), *map(_number, numbers)]
    return f"{node.op}({', '.join(inside)})"


def _number(value: float) -> str:
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
