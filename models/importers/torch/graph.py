# SPDX-License-Identifier: Apache-2.0
"""Reads a graph of ATen operators, as torch.export writes it, into a program: walks its nodes, computes what does not
depend on the rows, and hands the rest to the table of operators. Owns what a refusal says about the user's code."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.importers.building.builder import Builder
from fused_mlp.models.importers.building.nodes import Constant, Place
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.torch.aten import OPERATORS, REFUSED, Call, one_row
from fused_mlp.models.importers.torch.aten.refusals import REFUSED_LAYERS
from fused_mlp.models.importers.torch.tensors import to_array

_NOT_THEIRS = (str(Path(torch.__file__).parent), "torch/", str(Path(__file__).resolve().parents[1]))
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]+\n\s*([^\n]+)')
_LONGEST_LINE = 80
_POSITIONS = ("arange", "range", "linspace", "eye", "tril_indices", "triu_indices")  # of that many rows


class GraphReader:
    """`dtypes`: of the source's own tensors, by name, before anything was converted; `quantized`: those that were
    int8."""

    def __init__(
        self, builder: Builder, prefix: str, dtypes: Mapping[str, str], quantized: Set[str] = frozenset()
    ) -> None:
        self._builder = builder
        self._prefix = prefix
        self._dtypes = dtypes
        self._quantized = quantized
        self._origins: dict[int, str] = {}  # id of a tensor -> its name
        self._trained: dict[int, Tensor] = {}  # parameters, and what is computed from them
        self._constants: dict[int, tuple[Tensor, Constant]] = {}

    def name_tensor(self, tensor: Tensor, name: str, *, trained: bool) -> None:
        self._origins.setdefault(id(tensor), name.removeprefix(self._prefix))
        if trained:
            self._trained[id(tensor)] = tensor

    def run(self, module: GraphModule, inputs: Sequence[Any]) -> Any:
        """What the graph returns: Rows where it depends on the rows, tensors where it does not."""
        values: dict[Node, Any] = {}
        given = iter(inputs)
        for node in module.graph.nodes:
            match node.op:
                case "placeholder":
                    values[node] = next(given)
                case "get_attr":
                    values[node] = operator.attrgetter(str(node.target))(module)
                case "call_function":
                    values[node] = self._call(node, values)
                case "output":
                    return _filled(node.args[0], values)
        raise AssertionError("a graph ends with its output")

    def constant(self, tensor: Tensor) -> Constant:
        """A tensor that does not depend on the rows; the same one for the same tensor."""
        if id(tensor) not in self._constants:
            origin = self._origins.get(id(tensor), "")
            array = to_array(tensor, origin or "a constant")
            dtype = self._dtypes.get(origin, "") if array.dtype.kind not in "biu" else ""
            # The tensor is kept as well: an id is that of another one once it is gone.
            fixed = id(tensor) not in self._trained
            self._constants[id(tensor)] = (
                tensor,
                Constant(array, origin, dtype, fixed, origin in self._quantized),
            )
        return self._constants[id(tensor)][1]

    def _call(self, node: Node, values: dict[Node, Any]) -> Any:
        if node.target is operator.getitem:
            return values[node.args[0]][node.args[1]]  # type: ignore[index]
        made = node.meta.get("val")
        if isinstance(made, (torch.SymInt, torch.SymBool, torch.SymFloat)):
            return made
        arguments = _filled(node.args, values)
        options = _filled(node.kwargs, values)
        name = _operator_name(node)
        if name.startswith(("_assert", "sym_constrain")):
            return None
        if name in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            at = next(i for i, each in enumerate(arguments) if isinstance(each, GraphModule))
            return self.run(arguments[at], arguments[at + 1 :])
        if not any(isinstance(each, Rows) for each in _flat([arguments, options])):
            return self._compute(node, arguments, options)
        place = self._place(node, name)
        with self._builder.at(place):
            for layer, why in REFUSED_LAYERS.items():
                if any(kind.startswith(layer) for kind in _layers(node)):
                    raise ModelLoadError(why)
            if name in REFUSED:
                raise ModelLoadError(REFUSED[name])
            read = OPERATORS.get(name)
            if read is None:
                raise ModelLoadError(
                    f"the operator {name} is no step of an MLP; see docs/models/index.md for those that are"
                )
            call = Call(self._builder, self.constant, made)
            try:
                result = read(call, *arguments, **options)
            except (
                ArithmeticError,
                AssertionError,
                AttributeError,
                LookupError,
                TypeError,
                ValueError,
            ) as error:
                raise ModelLoadError(f"it is used in a way that is not read: {first_line(error)}") from error
        if _writes(node) and isinstance(node.args[0], Node):
            values[node.args[0]] = result  # export.py has seen to it that no view of it is read again
        return result

    def _compute(self, node: Node, arguments: Any, options: Any) -> Any:
        """What depends on no row. Sizes are taken for one row, over which the result is then broadcast."""
        if _operator_name(node) in _POSITIONS and any(
            isinstance(each, torch.SymInt) for each in _flat([arguments, options])
        ):
            place = self._place(node, _operator_name(node))
            raise ModelLoadError(f"{place}: it numbers the rows: a row is answered alike wherever it stands")
        arguments, options = _sized(arguments), _sized(options)
        if "device" in options:
            options = {**options, "device": None}
        try:
            with torch.no_grad():
                made = node.target(*arguments, **options)  # type: ignore[operator]
        except (RuntimeError, TypeError, ValueError) as error:
            place = self._place(node, _operator_name(node))
            raise ModelLoadError(
                f"{place}: it cannot be computed ahead of the rows: {first_line(error)}"
            ) from error
        if any(id(each) in self._trained for each in _flat([arguments, options])):
            self._trained.update({id(each): each for each in _flat(made) if isinstance(each, Tensor)})
        return made

    def _place(self, node: Node, name: str) -> Place:
        stack = node.meta.get("nn_module_stack") or {}
        path, kind = "", ""
        for each in stack.values():
            if isinstance(each, tuple) and len(each) == 2 and f"{each[0]}.".startswith(self._prefix):
                path = str(each[0])
                kind = each[1] if isinstance(each[1], str) else each[1].__qualname__
        path = path.removeprefix(self._prefix.rstrip(".")).lstrip(".")
        path = re.sub(r"@\d+$", "", path)  # of a module's second call
        leaf = kind.startswith("torch.nn.modules.") or name == "linear"
        label = kind.rpartition(".")[2]
        own = f"{path}.{name}" if path else name
        where = f"layer {path}: {label}" if leaf and path else f"{path or label or 'the model'}: {name}"
        return Place(where, path if leaf and path else own, _source_line(node))


def _operator_name(node: Node) -> str:
    """`relu` of aten.relu.default and of aten.relu_.default."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        name = target._schema.name
        space, _, short = name.partition("::")
        return short.rstrip("_") if space == "aten" else name
    return str(getattr(target, "__name__", target))


def _layers(node: Node) -> list[str]:
    """The types of the modules that a node is part of."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    kinds = [each[1] for each in stack if isinstance(each, tuple) and len(each) == 2]
    return [kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}" for kind in kinds]


def _writes(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _source_line(node: Node) -> str:
    """The user's own line that led to a node: the innermost one outside torch."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not _is_ours(frame[0])]
    if not own:
        return ""
    path, number, code = own[-1]
    code = code if len(code) <= _LONGEST_LINE else f"{code[: _LONGEST_LINE - 3]}..."
    return f"{Path(path).name}:{number}, `{code}`"


def _is_ours(path: str) -> bool:
    return path.startswith(_NOT_THEIRS) or str(Path(path).resolve()).startswith(_NOT_THEIRS)


def _filled(arguments: Any, values: Mapping[Node, Any]) -> Any:
    return torch.fx.node.map_aggregate(
        arguments, lambda each: values[each] if isinstance(each, Node) else each
    )


def _flat(arguments: Any) -> list[Any]:
    if isinstance(arguments, (list, tuple)):
        return [leaf for each in arguments for leaf in _flat(each)]
    if isinstance(arguments, dict):
        return _flat(list(arguments.values()))
    return [arguments]


def _sized(arguments: Any) -> Any:
    return torch.fx.node.map_aggregate(arguments, one_row)
