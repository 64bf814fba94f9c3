# SPDX-License-Identifier: Apache-2.0
"""PTX text -> the instructions of one kernel. Knows syntax only: which registers, labels and variables there are, not
what an instruction does."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.support.ptx.errors import PtxError

BITS = {
    "pred": 1,
    "b8": 8,
    "u8": 8,
    "s8": 8,
    "b16": 16,
    "u16": 16,
    "s16": 16,
    "f16": 16,
    "b32": 32,
    "u32": 32,
}
BITS |= {"s32": 32, "f32": 32, "b64": 64, "u64": 64, "s64": 64, "f64": 64}
NUMBER = re.compile(r"^-?(0[xX][0-9a-fA-F]+|\d+)U?$")
FLOAT = re.compile(r"^0[fFdD]([0-9a-fA-F]{8}|[0-9a-fA-F]{16})$")
VARIABLE = re.compile(
    r"\.(?P<space>shared|global|const|local)\s+(?:\.attribute\(\S*\)\s*)?(?:\.align\s+(?P<align>\d+)\s+)?"
    r"\.(?P<type>\w+)\s+(?P<name>[\w$%]+)(?:\[(?P<count>\d*)\])?(?:\s*=\s*(?P<values>.*))?$",
    re.DOTALL,
)


@dataclass(frozen=True)
class Register:
    index: int
    bits: int


@dataclass(frozen=True)
class Constant:
    """`value` holds the bits of a number; those of a float as they are."""

    value: int


@dataclass(frozen=True)
class Name:
    """A special register (%tid.x), a label, a parameter or a variable."""

    text: str


@dataclass(frozen=True)
class Address:
    base: Register | Name | Constant
    offset: int


@dataclass(frozen=True)
class Vector:
    parts: tuple[Operand, ...]


Operand = Register | Constant | Name | Address | Vector


@dataclass(frozen=True)
class Instruction:
    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None
    negated: bool
    target: int  # of a branch, else -1
    text: str
    line: int

    @property
    def parts(self) -> list[str]:
        return self.opcode.split(".")


@dataclass(frozen=True)
class Variable:
    name: str
    space: str
    align: int
    size: int
    data: bytes


@dataclass
class Kernel:
    name: str
    parameters: dict[str, tuple[int, int]]  # offset and size in bytes
    parameter_bytes: int
    threads: int  # as .reqntid says, 0 if it does not
    registers: list[int]  # bits of each
    instructions: list[Instruction]
    variables: list[Variable] = field(default_factory=list)


def parse(text: str, name: str) -> Kernel:
    """The kernel `name`, with the variables of its module."""
    text = re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(
        r"(?m)^[ \t]*\.(loc|file)\b[^\n]*", "", text
    )  # directives of a debugger, which no semicolon ends
    head = re.search(rf"\.entry\s+{re.escape(name)}\s*\((.*?)\)([^{{]*)\{{", text, re.DOTALL)
    if head is None:
        found = re.findall(r"\.entry\s+([\w$]+)", text)
        raise PtxError(f"expected a kernel {name!r}, found {', '.join(found) or 'none'}")
    parameters, size = _parameters(head[1])
    required = re.search(r"\.(?:req|max)ntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", head[2])
    threads = 1
    for each in required.groups() if required and ".reqntid" in head[2] else ("0",):
        threads *= int(each or 1)
    body = _Body(text, head.end(), text.count("\n", 0, head.end()) + 1)
    module = [_variable(found) for found in re.split(r"[;{}]\s*\n|\n", text[: head.start()]) if found.strip()]
    variables = [each for each in module if each is not None] + body.variables
    return Kernel(name, parameters, size, threads, body.bits, body.instructions, variables)


def _parameters(text: str) -> tuple[dict[str, tuple[int, int]], int]:
    found: dict[str, tuple[int, int]] = {}
    offset = 0
    for declaration in filter(str.strip, text.split(",")):
        match = re.match(r"\s*\.param\s+(.*?)([\w$]+)(?:\[(\d+)\])?\s*$", declaration, re.DOTALL)
        if match is None:
            raise PtxError(f"expected a parameter, got {declaration.strip()!r}")
        types = re.findall(r"\.(\w+)", match[1])
        unit = BITS[types[0] if types[0] in BITS else types[-1]] // 8
        aligned = re.search(r"\.align\s+(\d+)", match[1])
        align = int(aligned[1]) if aligned and match[3] else unit
        size = unit * int(match[3] or 1)
        offset = -(-offset // align) * align
        found[match[2]] = (offset, size)
        offset += size
    return found, offset


def _variable(statement: str) -> Variable | None:
    match = VARIABLE.search(" ".join(statement.split()).rstrip("; "))
    if match is None:
        return None
    unit = BITS[match["type"]] // 8
    values = [int(each, 0) for each in re.findall(r"-?\b(?:0x[0-9a-fA-F]+|\d+)\b", match["values"] or "")]
    count = int(match["count"]) if match["count"] else (1 if match["count"] is None else 0)
    data = b"".join((value % (1 << 8 * unit)).to_bytes(unit, "little") for value in values)
    size = max(unit * count, len(data))
    return Variable(match["name"], match["space"], int(match["align"] or unit), size, data)


class _Body:
    """Statements up to the kernel's closing brace. A brace that starts a statement opens a scope, whose registers and
    labels are its own (inline assembly uses them)."""

    def __init__(self, text: str, start: int, line: int) -> None:
        self.instructions: list[Instruction] = []
        self.variables: list[Variable] = []
        self.bits: list[int] = []
        self._ranges: dict[tuple[int, str], int] = {}  # bits of the registers prefix<n>
        self._registers: dict[tuple[int, str], Register] = {}
        self._labels: dict[tuple[int, str], int] = {}
        statements = self._split(text, start, line)
        parsed = [each for each in statements if not each[0].startswith(".")]
        self.instructions = [self._instruction(*each) for each in parsed]

    def _split(self, text: str, at: int, line: int) -> list[tuple[str, tuple[int, ...], int]]:
        found: list[tuple[str, tuple[int, ...], int]] = []
        scopes, opened, instructions = [0], 0, 0
        space, label = re.compile(r"\s*"), re.compile(r"([\w$]+):(?!:)")
        while True:
            begin = space.match(text, at).end()  # type: ignore[union-attr]
            line += text.count("\n", at, begin)
            at = begin
            if text[at] == "{":
                opened += 1
                scopes.append(opened)
                at += 1
            elif text[at] == "}":
                scopes.pop()
                at += 1
                if not scopes:
                    return found
            elif match := label.match(text, at):
                self._labels[scopes[-1], match[1]] = instructions
                at = match.end()
            else:
                end = text.index(";", at)
                statement = " ".join(text[at:end].split())
                if statement.startswith(".reg"):
                    self._declare(statement, scopes[-1])
                elif statement.startswith("."):
                    variable = _variable(statement)
                    self.variables += [] if variable is None else [variable]
                elif statement:
                    found.append((statement, tuple(scopes), line))
                    instructions += 1
                line += text.count("\n", at, end)
                at = end + 1

    def _declare(self, statement: str, scope: int) -> None:
        _, kind, names = statement.split(None, 2)
        for name in names.split(","):
            prefix, _, many = name.strip().partition("<")
            if many:
                self._ranges[scope, prefix] = BITS[kind[1:]]
            else:
                self._registers[scope, prefix] = self._new(BITS[kind[1:]])

    def _new(self, bits: int) -> Register:
        self.bits.append(bits)
        return Register(len(self.bits) - 1, bits)

    def _instruction(self, statement: str, scopes: tuple[int, ...], line: int) -> Instruction:
        guard = re.match(r"@(!?)([\w%$]+)\s+", statement)
        rest = statement[guard.end() :] if guard else statement
        opcode, _, operands = rest.partition(" ")
        parsed = tuple(self._operand(each, scopes) for each in _commas(operands))
        target = -1
        if opcode.startswith("bra"):
            label = parsed[-1].text if isinstance(parsed[-1], Name) else ""
            target = next(
                (self._labels[s, label] for s in reversed(scopes) if (s, label) in self._labels), -1
            )
            if target < 0:
                raise PtxError(f"line {line}: no label {label!r}: {statement}")
        register = self._operand(guard[2], scopes) if guard else None
        assert register is None or isinstance(register, Register)
        return Instruction(opcode, parsed, register, bool(guard and guard[1]), target, statement, line)

    def _operand(self, text: str, scopes: tuple[int, ...]) -> Operand:
        text = text.strip()
        if text.startswith("{"):
            return Vector(tuple(self._operand(each, scopes) for each in _commas(text[1:-1])))
        if text.startswith("["):
            base, sign, offset = re.fullmatch(r"(.+?)\s*(?:([+-])\s*(-?\w+))?", text[1:-1].strip()).groups()  # type: ignore[union-attr]
            inner = self._operand(base, scopes)
            assert isinstance(inner, (Register, Name, Constant))
            return Address(inner, (int(offset, 0) if offset else 0) * (-1 if sign == "-" else 1))
        if "|" in text:
            return Vector(tuple(self._operand(each, scopes) for each in text.split("|")))
        if NUMBER.match(text):
            return Constant(int(text.rstrip("U"), 0))
        if FLOAT.match(text):
            return Constant(int(text[2:], 16))
        return self._register(text, scopes) or Name(text)

    def _register(self, text: str, scopes: tuple[int, ...]) -> Register | None:
        prefix = text.rstrip("0123456789")
        for scope in reversed(scopes):
            if (scope, text) in self._registers:
                return self._registers[scope, text]
            if (scope, prefix) in self._ranges and prefix != text:
                return self._registers.setdefault((scope, text), self._new(self._ranges[scope, prefix]))
        return None


def _commas(text: str) -> list[str]:
    """Split at the commas outside of braces and brackets."""
    return [each for each in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", text) if each.strip()]
