# SPDX-License-Identifier: Apache-2.0
"""Reads a graph of ATen operators, as torch.export writes it, into a program: walks its nodes, computes what does not
depend on the rows, and hands the rest to the table of operators. Owns what a refusal says about the user's code."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.importers.building.builder import Builder
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.building.whole_numbers import is_ids
from fused_mlp.models.importers.torch.aten import ON_IDS, OPERATORS, REFUSED, Call, RowNumbers, one_row
from fused_mlp.models.importers.torch.aten.refusals import REFUSED_LAYERS, UNKNOWN, autocast
from fused_mlp.models.importers.torch.bounds import bounded
from fused_mlp.models.importers.torch.places import layers_of, place_of
from fused_mlp.models.importers.torch.tensors import to_array

_NUMBERS_ROWS = "it numbers the rows: a row is answered alike wherever it stands"
_MAKE_WHOLE = (  # conditions
    "isnan", "logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_not", "bitwise_and", "bitwise_or",
    "bitwise_xor", "__and", "__or", "__xor", "any", "all",
)  # fmt: skip
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
        self._bounded = bounded()  # one for the graph, whose values stay alive
        self._origins: dict[int, str] = {}  # id of a tensor -> its name
        self._trained: dict[int, Tensor] = {}  # parameters, and what is computed from them
        self._constants: dict[int, tuple[Tensor, Constant]] = {}

    def name_tensor(self, tensor: Tensor, name: str, *, trained: bool) -> None:
        self._origins.setdefault(id(tensor), name.removeprefix(self._prefix))
        if trained:
            self._trained[id(tensor)] = tensor

    def run(self, module: GraphModule, inputs: Sequence[Any]) -> Any:
        """The outputs of the graph: Rows where they depend on the rows, else tensors."""
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
            if name == "wrap_with_autocast" and arguments[2]:
                raise ModelLoadError(f"{place_of(node, 'autocast', self._prefix)}: {autocast(arguments[1])}")
            at = next(i for i, each in enumerate(arguments) if isinstance(each, GraphModule))
            return self.run(arguments[at], arguments[at + 1 :])
        if name != "embedding_bag":
            _refuse_row_numbers(_flat([arguments, options]))
        if not any(isinstance(each, Rows) for each in _flat([arguments, options])):
            return self._compute(node, arguments, options)
        place = place_of(node, name, self._prefix)
        with self._builder.at(place):
            of_ids = name in ON_IDS and any(map(is_ids, _flat([arguments, options])))
            _check_operator(node, name, of_ids)
            given = next((each.meta.get("val") for each in node.args if isinstance(each, Node)), None)
            call = Call(self._builder, self.constant, made, given)
            try:
                result = self._read(name, call, arguments, options)
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

    def _read(self, name: str, call: Call, arguments: Any, options: Any) -> Any:
        if any(map(is_ids, _flat([arguments, options]))):
            if name in ON_IDS:
                result = ON_IDS[name](call, *arguments, **options)
                if result is not NotImplemented:
                    return result
            elif not _made_dtype(call.made).is_floating_point and name not in _MAKE_WHOLE:
                raise ModelLoadError(f"{name} of ids is no rule for whole numbers: make floats of them first")
            single = _made_dtype(call.made) != torch.float64
            arguments, options = self._as_floats(arguments, single), self._as_floats(options, single)
        return OPERATORS[name](call, *arguments, **options)

    def _as_floats(self, arguments: Any, single: bool) -> Any:
        return torch.fx.node.map_aggregate(
            arguments,
            lambda each: self._builder.as_floats(each, single=single) if isinstance(each, Rows) else each,
        )

    def _compute(self, node: Node, arguments: Any, options: Any) -> Any:
        """Computes a node that depends on no row. Sizes are for one row; the result is then broadcast."""
        if _operator_name(node) in _POSITIONS and any(
            isinstance(each, torch.SymInt) for each in _flat([arguments, options])
        ):
            place = place_of(node, _operator_name(node), self._prefix)
            step = arguments[2] if len(arguments) == 3 else 1
            if _operator_name(node) == "arange" and isinstance(step, int):
                return RowNumbers(step, str(place))  # where the bags of an nn.EmbeddingBag start
            raise ModelLoadError(f"{place}: {_NUMBERS_ROWS}")
        arguments, options = _sized(arguments), _sized(options)
        if "device" in options:
            options = {**options, "device": None}
        try:
            with torch.no_grad(), self._bounded:
                made = node.target(*arguments, **options)  # type: ignore[operator]
        except (RuntimeError, TypeError, ValueError) as error:
            place = place_of(node, _operator_name(node), self._prefix)
            raise ModelLoadError(
                f"{place}: it cannot be computed ahead of the rows: {first_line(error)}"
            ) from error
        if any(id(each) in self._trained for each in _flat([arguments, options])):
            self._trained.update({id(each): each for each in _flat(made) if isinstance(each, Tensor)})
        return made


def _check_operator(node: Node, name: str, of_ids: bool) -> None:
    """Refuse what no step is made of."""
    for layer, why in REFUSED_LAYERS.items():
        if any(kind.startswith(layer) for kind in layers_of(node)):
            raise ModelLoadError(why)
    if name in REFUSED and not of_ids:
        raise ModelLoadError(REFUSED[name])
    if name not in OPERATORS and not of_ids:
        raise ModelLoadError(UNKNOWN.format(name))


def _refuse_row_numbers(arguments: Sequence[Any]) -> None:
    for each in arguments:
        if isinstance(each, RowNumbers):
            raise ModelLoadError(f"{each.place}: {_NUMBERS_ROWS}")


def _operator_name(node: Node) -> str:
    """`relu` of aten.relu.default and of aten.relu_.default."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        name = target._schema.name
        space, _, short = name.partition("::")
        return short.rstrip("_") if space == "aten" else name
    return str(getattr(target, "__name__", target))


def _writes(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


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


def _made_dtype(made: Any) -> torch.dtype:
    first = made[0] if isinstance(made, (list, tuple)) else made
    dtype: torch.dtype = first.dtype
    return dtype


def _sized(arguments: Any) -> Any:
    return torch.fx.node.map_aggregate(arguments, one_row)
