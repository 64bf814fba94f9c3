"""Functions of one value, as text: `relu`, `leaky_relu(x, 0.2)`, `x * sigmoid(1.702 * x)`. Owns their grammar, their
canonical spelling, what each computes in numpy, and the instructions that kernels compile. Knows nothing of models.

The text is parsed by Python's own parser and only the nodes below are taken from it: nothing is ever executed."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from fused_mlp.models.activations import PRIMITIVES, Floats

# What a formula may be made of. Longer ones are no activation functions, and would be slow to check and to compile.
MAX_TEXT = 1024
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
    "sign": "clip(x * 1e38, -1, 1)",
}
_SUGAR_DEFAULTS: dict[str, tuple[float, ...]] = {"celu": (1.0,), "hardtanh": (-1.0, 1.0)}
_SYMBOLS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
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
        if self.root.op in PARAMETERS and self.root.arguments == (_X,):
            return self.root.op, self.root.numbers
        return None

    @property
    def is_identity(self) -> bool:
        return self.root == _X

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
        return _made(_replace(other.root, self.root))

    def __str__(self) -> str:
        return self.text


_BLOCK = 16384  # values at a time, so that the temporaries stay in the cache
_X = Node("x")
_ZERO = Node("constant", (), (0.0,))


@lru_cache(maxsize=4096)
def parse(text: str) -> Formula:
    """The formula that `text` spells; FormulaError says what is wrong with it."""
    if len(text) > MAX_TEXT:
        raise FormulaError(f"function of {len(text)} characters: expected at most {MAX_TEXT}")
    if text in (
        "x",
        "identity",
    ):  # plain names need no parser: most models of a server have no other functions
        return _made(_X)
    if text in PARAMETERS and None not in PARAMETERS[text]:
        return _made(_function(text, (_X,)))
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise FormulaError(
            f"function {_short(text)!r}: expected a formula such as relu or x * sigmoid(x)"
        ) from None
    try:
        body = tree.body
        if isinstance(body, ast.Name) and body.id != "x":  # `relu` is relu(x)
            return _made(_function(body.id, (_X,)))
        return _made(_read(body))
    except FormulaError as error:
        raise FormulaError(f"function {_short(text)!r}: {error}") from None
    except RecursionError:
        raise FormulaError(f"function {_short(text)!r}: nested too deeply") from None
    except OverflowError:  # a whole number of hundreds of digits
        raise FormulaError(f"function {_short(text)!r}: expected finite numbers") from None


def of(root: Node) -> Formula:
    """The formula with this tree, for importers that build one."""
    return _made(root)


def x() -> Node:
    return _X


def constant(value: float) -> Node:
    return Node("constant", (), (float(value) + 0.0,))  # -0.0 becomes 0.0: equal constants are one


def call(name: str, argument: Node, *numbers: float) -> Node:
    """A function of PARAMETERS or SUGAR of a tree."""
    return _function(name, (argument, *map(constant, numbers)))


def binary(op: str, left: Node, right: Node) -> Node:
    if left.op == "constant" and right.op == "constant":
        with np.errstate(all="ignore"):
            return constant(float(PRIMITIVES[op](np.float64(left.numbers[0]), np.float64(right.numbers[0]))))
    if op == "maximum" and _ZERO in (left, right):
        return Node("relu", (right if left == _ZERO else left,))
    if op in ("maximum", "minimum") and left == right:
        return left
    return Node(op, (left, right))


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _read(node: ast.expr) -> Node:
    match node:
        case ast.Name(id="x"):
            return _X
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as value):
            return constant(float(value))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _read(operand)
            return (
                constant(-inner.numbers[0])
                if inner.op == "constant"
                else binary("multiply", inner, constant(-1.0))
            )
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            return binary(_OPERATORS[type(operator)], _read(left), _read(right))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _function(name, tuple(_read(each) for each in arguments))
    raise FormulaError(f"expected x, numbers, + - * / and functions, got {ast.unparse(node)[:40]!r}")


def _function(name: str, arguments: tuple[Node, ...]) -> Node:
    if name in ("maximum", "minimum"):
        if len(arguments) != 2:
            raise FormulaError(f"{name}: expected two arguments, got {len(arguments)}")
        return binary(name, *arguments)
    defaults = _SUGAR_DEFAULTS.get(name, ()) if name in SUGAR else PARAMETERS.get(name)
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
        names = {"a": constant(numbers[0]) if numbers else _X, "b": constant(numbers[-1]) if numbers else _X}
        return _replace(_sugar(name, names), argument)
    if argument.op == "constant":
        with np.errstate(all="ignore"):
            value = PRIMITIVES[name](np.float64(argument.numbers[0]), *map(np.float64, numbers))
        return constant(float(value))
    return Node(name, (argument,), tuple(numbers))


def _sugar(name: str, parameters: dict[str, Node]) -> Node:
    def read(node: ast.expr) -> Node:
        match node:
            case ast.Name(id=letter) if letter in parameters:
                return parameters[letter]
            case ast.BinOp(left=left, op=operator, right=right):
                return binary(_OPERATORS[type(operator)], read(left), read(right))
            case ast.Call(func=ast.Name(id=inner), args=arguments):
                return _function(inner, tuple(read(each) for each in arguments))
        return _read(node)

    return read(ast.parse(SUGAR[name], mode="eval").body)


def _replace(tree: Node, argument: Node) -> Node:
    """The tree with `argument` for x."""
    if tree == _X:
        return argument
    if not tree.arguments:
        return tree
    inner = tuple(_replace(each, argument) for each in tree.arguments)
    if tree.op in BINARY:
        return binary(tree.op, *inner)
    return _function(tree.op, (*inner, *map(constant, tree.numbers)))


def _made(root: Node) -> Formula:
    instructions: list[Instruction] = []
    constants: list[float] = []
    registers: dict[Node, int] = {_X: 0}

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
    if root.op in PARAMETERS and root.arguments == (_X,) and root.numbers == PARAMETERS[root.op]:
        return root.op
    if root == _X:
        return "x"
    return _sugar_names().get(root) or _write(root, 0)


@cache
def _sugar_names() -> dict[Node, str]:
    """The name of every formula that has one without parameters."""
    return {_sugar(name, {}): name for name in SUGAR if name != "identity" and name not in _SUGAR_DEFAULTS}


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
