# SPDX-License-Identifier: Apache-2.0
"""Parses the JSON graph of an exported program into a torch.fx.Graph of known operators. Names and texts of the file
are data: no node takes its name from it, and no code is generated from the graph."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import torch
from torch import fx

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.torch.aten.refusals import REFUSED_LAYERS, autocast
from fused_mlp.models.importers.torch.export import PREFIX
from fused_mlp.models.importers.torch.places import layers_of, place_of
from fused_mlp.models.importers.torch.pt2.operators import (
    find_operator,
    is_assertion,
    short_name,
    size_operator,
)

_MAX_NODES = 20_000
_MAX_TEXT = 10_000
_NUMBERS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
DTYPES = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32,
    8: torch.float64, 12: torch.bool, 13: torch.bfloat16,
}  # fmt: skip
_MEMORY_FORMATS = {1: torch.contiguous_format, 4: torch.preserve_format}
_STRIDED = 7
_KEYWORD = 2
# They run a graph of their own, which becomes part of this one.
_WRAPPERS = re.compile(r"torch\.ops\.higher_order\.wrap_with_(set_grad_enabled|autocast)")
_PATH = re.compile(r'File "([^"]*)"')


class GraphParser:
    """`graph` grows by `declare`, for inputs, and by `read`."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self._values: dict[str, fx.Node] = {}
        self._rows: set[fx.Node] = set()  # that depend on the rows
        self._count = 0

    def declare(self, name: str, node: fx.Node, *, has_rows: bool) -> None:
        if name in self._values:
            raise ModelLoadError(f"two values of its graph have the name {name[:100]!r}")
        self._values[name] = node
        if has_rows:
            self._rows.add(node)

    def read(self, graph: Any) -> list[Any]:
        """Adds the nodes of a parsed JSON graph; returns its outputs."""
        for given in graph["nodes"]:
            self._count += 1
            if self._count > _MAX_NODES:
                raise ModelLoadError(f"its graph has more than {_MAX_NODES} nodes")
            self._add(given)
        return [self._argument(each) for each in graph["outputs"]]

    def _add(self, given: Any) -> None:
        target = str(given["target"])
        if is_assertion(target):
            return
        if _WRAPPERS.fullmatch(target):
            self._inline(given)
            return
        arguments = [self._argument(each["arg"]) for each in given["inputs"]]
        found = size_operator(target)
        has_rows = found is None and any(each in self._rows for each in _nodes(arguments))
        if found is not None:
            node = self.graph.call_function(found, tuple(arguments))
        else:
            node = self._call(target, given, arguments, has_rows)
        self._name_outputs(given["outputs"], node, has_rows)

    def _call(self, target: str, given: Any, arguments: list[Any], has_rows: bool) -> fx.Node:
        node = self.graph.call_function(torch.ops.aten.relu.default)
        node.meta.update(_origin(given.get("metadata") or {}))
        try:
            if has_rows:
                for layer, why in REFUSED_LAYERS.items():
                    if any(kind.startswith(layer) for kind in layers_of(node)):
                        raise ModelLoadError(why)
            node.target = find_operator(target, on_rows=has_rows)
        except ModelLoadError as error:
            raise ModelLoadError(f"{place_of(node, short_name(target), PREFIX)}: {error}") from error
        named = list(zip(given["inputs"], arguments, strict=True))
        node.args = tuple(value for each, value in named if each.get("kind") != _KEYWORD)
        node.kwargs = {str(each["name"]): value for each, value in named if each.get("kind") == _KEYWORD}
        return node

    def _inline(self, given: Any) -> None:
        """A part of the graph without gradients: (enabled, graph, inputs ...)."""
        at = next(i for i, each in enumerate(given["inputs"]) if "as_graph" in each["arg"])
        if str(given["target"]).endswith("autocast") and given["inputs"][2]["arg"].get("as_bool"):
            raise ModelLoadError(autocast(self._argument(given["inputs"][1]["arg"])))
        part = given["inputs"][at]["arg"]["as_graph"]["graph"]
        outer = self._values
        self._values = {
            inner["as_tensor"]["name"]: self._argument(each["arg"])
            for inner, each in zip(part["inputs"], given["inputs"][at + 1 :], strict=True)
        }
        made = self.read(part)
        self._values = outer
        names = [name for each in given["outputs"] for name in _names(each)]
        for name, node in zip(names, made, strict=True):
            self.declare(name, node, has_rows=node in self._rows)

    def _name_outputs(self, outputs: Sequence[Any], node: fx.Node, has_rows: bool) -> None:
        """A single output is the node's value; several are its parts."""
        if len(outputs) == 1 and "as_tensors" not in outputs[0]:
            for name in _names(outputs[0]):
                self.declare(name, node, has_rows=has_rows)
            return
        parts = outputs[0]["as_tensors"] if len(outputs) == 1 else outputs
        if has_rows:
            self._rows.add(node)
        for position, part in enumerate(parts):
            for name in [part["name"]] if "name" in part else _names(part):
                taken = self.graph.call_function(_part, (node, position))
                taken.meta.update(node.meta)
                self.declare(name, taken, has_rows=has_rows)

    def _value(self, name: Any) -> fx.Node:
        if name not in self._values:
            raise ModelLoadError(f"its graph uses {str(name)[:100]!r}, which no node before makes")
        return self._values[name]

    def _argument(self, given: Any) -> Any:  # noqa: PLR0911, PLR0912 - a table of kinds
        ((kind, value),) = given.items()
        match kind, value:
            case "as_none", _:
                return None
            case "as_tensor", {"name": name}:
                return self._value(name)
            case "as_tensors", list():
                return [self._value(each["name"]) for each in value]
            case "as_optional_tensors", list():
                return [self._argument(each) for each in value]
            case "as_optional_tensor", dict():
                return self._argument(value)
            case (("as_sym_int" | "as_sym_float" | "as_sym_bool"), {"as_name": name}):
                return self._value(name)
            case (("as_sym_int" | "as_sym_float" | "as_sym_bool"), dict()):
                return self._argument(value)
            case (("as_sym_ints" | "as_sym_floats"), list()):
                return [
                    self._value(each["as_name"]) if "as_name" in each else self._argument(each)
                    for each in value
                ]
            case (("as_int" | "as_bool"), int()):
                return value
            case "as_float", _:
                return _number(value)
            case (("as_ints" | "as_bools"), list()) if all(isinstance(each, int) for each in value):
                return list(value)
            case "as_floats", list():
                return [_number(each) for each in value]
            case "as_string", str() if len(value) <= _MAX_TEXT:
                return value
            case "as_scalar_type", int() if value in DTYPES:
                return DTYPES[value]
            case "as_memory_format", int() if value in _MEMORY_FORMATS:
                return _MEMORY_FORMATS[value]
            case "as_layout", int() if value == _STRIDED:
                return torch.strided
            case "as_device", _:
                return torch.device("cpu")  # wherever it was exported
        raise ModelLoadError(f"its graph has an argument that is not read: {str(kind)[:40]}")


def _part(values: Any, position: int) -> Any:
    """One result of an operator that has several, or one item of a list."""
    return values[position]


def _names(given: Any) -> list[str]:
    match given:
        case {"as_tensor": {"name": str(name)}}:
            return [name]
        case {"as_tensors": list(each)}:
            return [str(tensor["name"]) for tensor in each]
        case {"as_sym_int": {"as_name": str(name)}} | {"as_sym_float": {"as_name": str(name)}}:
            return [name]
        case {"as_sym_bool": {"as_name": str(name)}}:
            return [name]
        case {"as_none": _}:
            return []
    raise ModelLoadError("its graph has an output that is not read")


def _number(value: Any) -> float:
    return _NUMBERS[value] if isinstance(value, str) else float(value)


def _nodes(arguments: Any) -> list[fx.Node]:
    if isinstance(arguments, list):
        return [node for each in arguments for node in _nodes(each)]
    return [arguments] if isinstance(arguments, fx.Node) else []


def _origin(metadata: Any) -> dict[str, Any]:
    """The modules and the line that a node comes from, as texts for errors. `key,path,type;key,path,type`."""
    stack = [each.split(",") for each in str(metadata.get("nn_module_stack") or "")[:_MAX_TEXT].split(";")]
    trace = str(metadata.get("stack_trace") or "")[:_MAX_TEXT]
    return {
        "nn_module_stack": {
            each[0]: (f"{PREFIX}{each[1]}".rstrip("."), each[2]) for each in stack if len(each) == 3
        },
        "stack_trace": _PATH.sub(lambda found: f'File "{_short_path(found[1])}"', trace),
    }


def _short_path(path: str) -> str:
    """Without folders, so that nothing looks for a file of another machine. Those of torch stay known as torch's."""
    name = PurePath(path.replace("\\", "/")).name.replace("\0", "")
    return f"torch/{name}" if "/torch/" in path else name
