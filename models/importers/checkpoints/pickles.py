# SPDX-License-Identifier: Apache-2.0
"""A pickle as plain data. pickletools splits it into opcodes; no class in it is looked up and no function called: what
torch.save writes for a tensor becomes a StoredTensor, and every other object an Unknown."""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.strided import MAX_DIMENSIONS

_MAX_OPCODES = 4_000_000
_DTYPES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "UntypedStorage": "uint8",
    **{name: name for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64",
                               "uint32", "uint16", "uint8", "bool", "float8_e4m3fn", "float8_e5m2")},
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Storage:
    key: str
    dtype: str


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A strided view of a storage; its numbers are from 0."""

    storage: Storage
    dtype: str
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Unknown:
    """An object of a class that is not read, or the class itself."""

    name: str


class Pickle(NamedTuple):
    value: Any
    storages: dict[str, Storage]  # by their keys: all that it names


def read_pickle(stream: IO[bytes]) -> Pickle:
    """The pickle at this place of the stream. ModelLoadError or ValueError if it cannot be read."""
    machine = _Machine()
    return Pickle(machine.run(stream), machine.storages)


class _Machine:
    """Runs a pickle, a program for a stack machine, with the opcodes for dicts, lists, tuples and tensors alone."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}

    def run(self, stream: IO[bytes]) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if count == _MAX_OPCODES:
                raise ModelLoadError(f"a pickle of more than {_MAX_OPCODES} opcodes, too long for an MLP")
            if opcode.name == "STOP":
                return self._stack.pop()
            if (action := _ACTIONS.get(opcode.name)) is not None:
                action(self, argument)
            elif argument is not None and opcode.name not in _REFUSED:
                self._stack.append(argument)
            else:
                raise ModelLoadError(f"a pickle with the opcode {opcode.name}, which no state_dict needs")
        raise ValueError("it does not end")

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self, count: int = 1) -> list[Any]:
        if len(self._stack) < count:
            raise ValueError("its stack is empty")
        taken = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return taken

    def mark(self) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def pop_mark(self) -> list[Any]:
        taken, self._stack = self._stack, self._marked.pop()
        return taken

    def remember(self, at: int | None) -> None:
        self._memo[len(self._memo) if at is None else at] = self._stack[-1]

    def recall(self, at: int) -> None:
        self._stack.append(self._memo[at])

    def name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:  # a tuple may hold itself 2**40 times
            raise ValueError("a class without a name")
        self._stack.append(Unknown(f"{module}.{name}"[:200]))

    def storage(self, identity: Any) -> None:
        """(storage, its class, key, device, number of elements), and in files of old torch the view of another one."""
        match identity:
            case ("storage", Unknown(name), str(key), _, int(), *views) if not any(views):
                if dtype := _DTYPES.get(name.rpartition(".")[2]):
                    self._stack.append(self.storages.setdefault(key, Storage(key, dtype)))
                    return
        self._stack.append(Unknown("a storage"))

    def add(self, values: list[Any]) -> None:
        if isinstance(target := self._filled(), list):
            target.extend(values)

    def set(self, values: list[Any]) -> None:
        if isinstance(target := self._filled(), dict):
            target.update(_pairs(values))

    def _filled(self) -> Any:
        target = self._stack[-1]
        if not isinstance(target, (list, dict, Unknown)):
            raise ValueError(f"it adds to a {type(target).__name__}")
        return target


def _pairs(values: list[Any]) -> dict[Any, Any]:
    """Keys of other types are not looked at: the hash of a tuple goes as deep as the tuple."""
    keys = (key if type(key) in (str, int) else Unknown(type(key).__name__) for key in values[::2])
    return dict(zip(keys, values[1::2], strict=True))


def _call(function: Any, arguments: Any) -> Any:
    name = function.name if isinstance(function, Unknown) else ""
    if (
        name == "torch._utils._rebuild_from_type_v2"
    ):  # a tensor with attributes: (function, type, arguments, state)
        return _call(arguments[0], arguments[2])
    made = _CALLS[name](arguments) if name in _CALLS else None
    return Unknown(name) if made is None else made


def _tensor(arguments: Any) -> StoredTensor | None:
    match arguments:
        case (Storage() as storage, int(offset), tuple(sizes), tuple(strides), *rest) if (
            len(sizes) == len(strides) <= MAX_DIMENSIONS
        ):
            numbers = (offset, *sizes, *strides)
            given = rest[2] if len(rest) > 2 else None  # of _rebuild_tensor_v3; v2 has metadata there
            name = given.name.removeprefix("torch.") if isinstance(given, Unknown) else storage.dtype
            if (dtype := _DTYPES.get(name)) and all(
                type(each) is int and 0 <= each < 1 << 62 for each in numbers
            ):
                return StoredTensor(storage, dtype, offset, sizes, strides)
    return None


_CALLS: dict[str, Callable[[Any], Any]] = {
    "collections.OrderedDict": lambda arguments: {} if arguments == () else None,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor,
    **dict.fromkeys(
        ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"),
        lambda arguments: arguments[0] if isinstance(arguments[0], StoredTensor) else None,
    ),
}
_ACTIONS: dict[str, Callable[[_Machine, Any], object]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, _: None),
    "MARK": lambda machine, _: machine.mark(),
    "POP": lambda machine, _: machine.pop(),
    "POP_MARK": lambda machine, _: machine.pop_mark(),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "EMPTY_SET": lambda machine, _: machine.push(Unknown("set")),
    "DICT": lambda machine, _: machine.push(_pairs(machine.pop_mark())),
    "LIST": lambda machine, _: machine.push(machine.pop_mark()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_mark())),
    "FROZENSET": lambda machine, _: machine.push(_call(Unknown("frozenset"), machine.pop_mark())),
    "TUPLE1": lambda machine, _: machine.push(tuple(machine.pop())),
    "TUPLE2": lambda machine, _: machine.push(tuple(machine.pop(2))),
    "TUPLE3": lambda machine, _: machine.push(tuple(machine.pop(3))),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), lambda machine, at: machine.remember(at)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, at: machine.recall(at)),
    "GLOBAL": lambda machine, names: machine.name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(*machine.pop(2)),
    "BINPERSID": lambda machine, _: machine.storage(*machine.pop()),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), lambda machine, _: machine.push(_call(*machine.pop(2)))),
    "NEWOBJ_EX": lambda machine, _: machine.push(_call(*machine.pop(3)[:2])),
    "BUILD": lambda machine, _: machine.pop(),  # attributes of the object below
    "APPEND": lambda machine, _: machine.add(machine.pop()),
    **dict.fromkeys(("APPENDS", "ADDITEMS"), lambda machine, _: machine.add(machine.pop_mark())),
    "SETITEM": lambda machine, _: machine.set(machine.pop(2)),
    "SETITEMS": lambda machine, _: machine.set(machine.pop_mark()),
}  # fmt: skip
_REFUSED = ("INST", "EXT1", "EXT2", "EXT4", "PERSID")
