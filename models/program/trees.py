# SPDX-License-Identifier: Apache-2.0
"""Trees of formulas: what a function of one value may be made of, and how trees are put together, from other trees and
from text. The text is parsed by Python's own parser and only the nodes below are taken from it: nothing is ever
executed."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fused_mlp.models.program.activations import PRIMITIVES

# The largest formula. Longer ones are no activation functions, and would be slow to check and to compile.
MAX_INSTRUCTIONS = 64
MAX_SIZE = 512

# name -> defaults of its parameters, which follow x. None: the parameter has no default.
PARAMETERS: dict[str, tuple[float | None, ...]] = {
    "relu": (),
    "leaky_relu": (0.01,),
    "gelu": (),
    "gelu_tanh": (),
    "silu": (),
    "tanh": (),
    "sigmoid": (),
    "elu": (1.0,),
    "softplus": (1.0, 20.0),  # beta, threshold: linear where beta * x is above it
    "hardswish": (),
    "mish": (),
    "clip": (None, None),
    "abs": (),
    "exp": (),
    "log": (),
    "sqrt": (),
    "sin": (),
    "cos": (),
    "erf": (),
    "log1p": (),  # log(1 + x) and exp(x) - 1 lose the digits of a small x
    "expm1": (),
    "sign": (),  # of NaN 0, as in PyTorch
}
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
# Names for formulas that people know by name.
SUGAR: dict[str, str] = {
    "identity": "x",
    "relu6": "clip(x, 0, 6)",
    "selu": "1.0507009873554805 * elu(x, 1.6732632423543772)",
    "celu": "a * elu(x / a)",
    "hardtanh": "clip(x, a, b)",
    "hardsigmoid": "clip(x + 3, 0, 6) / 6",
    "softsign": "x / (1 + abs(x))",
    "quick_gelu": "x * sigmoid(1.702 * x)",
    "square": "x * x",
    "reciprocal": "1 / x",
    "tan": "sin(x) / cos(x)",
    "sinh": "0.5 * (expm1(x) - expm1(-x))",
    "cosh": "0.5 * (exp(x) + exp(-x))",
    # Exact for small and large values: nothing cancels, and no square of a large one overflows.
    "asinh": "sign(x) * log1p(abs(x) * (1 + 1 / "
    "(1 / maximum(abs(x), 1e-9) + sqrt(1 + 1 / maximum(abs(x), 1e-9) / maximum(abs(x), 1e-9)))))",
    "acosh": "log1p(x - 1 + sqrt(x - 1) * sqrt(x + 1))",
    "atanh": "sign(x) * log1p(2 * abs(x) / (1 - abs(x))) / 2",
    "exp2": "exp(0.6931471805599453 * x)",
    "log2": "log(x) / 0.6931471805599453",
    "log10": "log(x) / 2.302585092994046",
    "rsqrt": "1 / sqrt(x)",
    "erfc": "1 - erf(x)",
    "log_sigmoid": "-softplus(-x, 1, 40)",
}
SUGAR_DEFAULTS: dict[str, tuple[float, ...]] = {"celu": (1.0,), "hardtanh": (-1.0, 1.0)}
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
}


class FormulaError(ValueError):
    """A text that is no formula, or one that no kernel takes."""


@dataclass(frozen=True)
class Node:
    """`op`: "x", "constant", a name of BINARY, or a function of PARAMETERS with its parameters as `numbers`."""

    op: str
    arguments: tuple[Node, ...] = ()
    numbers: tuple[float, ...] = ()
    # A tree can share its parts, so that few nodes may spell an endless text: it is bounded as written out. Every level
    # of it is an instruction, so that the bound on those bounds recursion too.
    size: int = field(default=1, compare=False)
    depth: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        size = 1 + sum(each.size for each in self.arguments)
        depth = 1 + max((each.depth for each in self.arguments), default=-1)
        if size > MAX_SIZE:
            raise FormulaError(f"more than {MAX_SIZE} operations, written out")
        if depth > MAX_INSTRUCTIONS:
            raise FormulaError(f"more than {MAX_INSTRUCTIONS} operations inside each other")
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "depth", depth)
        # Once: a tree is looked up level by level.
        object.__setattr__(self, "_hash", hash((self.op, self.arguments, self.numbers)))

    def __hash__(self) -> int:
        result: int = self._hash  # type: ignore[attr-defined]
        return result


X = Node("x")
_ZERO = Node("constant", (), (0.0,))


def x() -> Node:
    return X


def constant(value: float) -> Node:
    return Node("constant", (), (float(value) + 0.0,))  # -0.0 becomes 0.0: equal constants are one


def call(name: str, argument: Node, *numbers: float) -> Node:
    """A function of PARAMETERS or SUGAR of a tree."""
    return function(name, (argument, *map(constant, numbers)))


def binary(op: str, left: Node, right: Node) -> Node:
    if left.op == "constant" and right.op == "constant":
        with np.errstate(all="ignore"):
            return constant(float(PRIMITIVES[op](np.float64(left.numbers[0]), np.float64(right.numbers[0]))))
    if op == "maximum" and _ZERO in (left, right):
        return Node("relu", (right if left == _ZERO else left,))
    if op in ("maximum", "minimum") and left == right:
        return left
    return Node(op, (left, right))


def replaced(tree: Node, argument: Node) -> Node:
    """The tree with `argument` for x."""
    if tree == X:
        return argument
    if not tree.arguments:
        return tree
    inner = tuple(replaced(each, argument) for each in tree.arguments)
    if tree.op in BINARY:
        return binary(tree.op, *inner)
    return function(tree.op, (*inner, *map(constant, tree.numbers)))


def read(node: ast.expr, names: Mapping[str, Node]) -> Node:
    match node:
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as value):
            return constant(float(value))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = read(operand, names)
            return (
                constant(-inner.numbers[0])
                if inner.op == "constant"
                else binary("multiply", inner, constant(-1.0))
            )
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            return binary(_OPERATORS[type(operator)], read(left, names), read(right, names))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return function(name, tuple(read(each, names) for each in arguments))
    raise FormulaError(f"expected x, numbers, + - * / and functions, got {ast.unparse(node)[:40]!r}")


def function(name: str, arguments: tuple[Node, ...]) -> Node:
    if name in ("maximum", "minimum"):
        if len(arguments) != 2:
            raise FormulaError(f"{name}: expected two arguments, got {len(arguments)}")
        return binary(name, *arguments)
    defaults = SUGAR_DEFAULTS.get(name, ()) if name in SUGAR else PARAMETERS.get(name)
    if defaults is None:
        known = ", ".join(sorted({*PARAMETERS, *SUGAR, "maximum", "minimum"}))
        raise FormulaError(f"there is no function {name[:40]!r}; there are {known}")
    if not arguments:
        raise FormulaError(f"{name}: expected a value, as in {name}(x)")
    argument, *given = arguments
    if len(given) > len(defaults) or any(each.op != "constant" for each in given):
        raise FormulaError(f"{name}: expected at most {len(defaults)} numbers after its value")
    numbers = [each.numbers[0] for each in given]
    for default in defaults[len(numbers) :]:
        if default is None:
            raise FormulaError(f"{name}: expected {len(defaults)} numbers after its value, got {len(given)}")
        numbers.append(default)
    if name in SUGAR:
        return spelled_out(name, argument, numbers)
    if argument.op == "constant":
        with np.errstate(all="ignore"):
            value = PRIMITIVES[name](np.float64(argument.numbers[0]), *map(np.float64, numbers))
        return constant(float(value))
    return Node(name, (argument,), tuple(numbers))


def spelled_out(name: str, argument: Node, numbers: Sequence[float]) -> Node:
    """A name of SUGAR, of a tree. Read with x first: constants that meet there are folded."""
    names = {"x": X, **dict(zip("ab", map(constant, numbers), strict=False))}
    return replaced(read(ast.parse(SUGAR[name], mode="eval").body, names), argument)
