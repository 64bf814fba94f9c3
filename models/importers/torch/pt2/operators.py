# SPDX-License-Identifier: Apache-2.0
"""The operators that a graph from a file may name. None of them touches a file, loads code or reads memory that is not
its arguments' own; sizes are bounded where they run (bounds.py)."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.torch.aten import ON_IDS, OPERATORS, REFUSED
from fused_mlp.models.importers.torch.aten.refusals import UNKNOWN, quantised

Operator = Callable[..., Any]
_TARGET = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")
# Take strides that nothing checks, or a device's own memory.
_UNCHECKED = {"_reshape_alias", "cudnn_batch_norm"}
_ON_ROWS = (frozenset(OPERATORS) | frozenset(ON_IDS)) - _UNCHECKED
# Computed ahead of the rows, from weights and numbers alone.
_ON_CONSTANTS = _ON_ROWS | {
    "zeros", "ones", "full", "arange", "linspace", "eye", "scalar_tensor", "tril", "triu", "outer", "diag", "diagonal",
    "diag_embed", "cumsum", "cumprod", "logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or",
    "bitwise_not", "floor", "ceil", "round", "trunc", "frac", "fmod", "remainder", "any", "all", "fill", "zero",
    "isnan", "isinf", "index_put", "tril_indices", "triu_indices", "sort", "argsort", "argmax", "argmin", "embedding",
    "gather", "vdot", "_weight_norm",
}  # fmt: skip
_ARITHMETIC = (
    "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pos", "eq", "ne", "lt", "le", "gt", "ge",
)  # fmt: skip
_SYMBOLIC = ("sym_int", "sym_float", "sym_max", "sym_min", "sym_not")
_NUMBER = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def _of_numbers(function: Operator) -> Operator:
    """Python multiplies and formats texts and lists, too, to any length."""

    def compute(*numbers: Any) -> Any:
        if not all(isinstance(each, _NUMBER) for each in numbers):
            raise ModelLoadError(f"{function.__name__}: expected numbers between sizes, got something else")
        return function(*numbers)

    return compute


# Between sizes. Shifts and powers are left out: they make numbers of any length.
_ON_SIZES: dict[str, Operator] = {
    **{f"_operator.{name}": _of_numbers(getattr(operator, name)) for name in _ARITHMETIC},
    **{f"torch.{name}": _of_numbers(getattr(torch, name)) for name in _SYMBOLIC},
    "math.trunc": _of_numbers(math.trunc),
    "torch.ops.aten.sym_size.int": torch.ops.aten.sym_size.int,
    "torch.ops.aten.sym_numel.default": torch.ops.aten.sym_numel.default,
}
_ASSERTIONS = re.compile(r"torch\.ops\.aten\.(_assert_\w+|sym_constrain_range\w*)\.\w+")
_RETURNS = ("Tensor", "List[Tensor]")


def size_operator(target: str) -> Operator | None:
    return _ON_SIZES.get(target)


def is_assertion(target: str) -> bool:
    """Only checks shapes as they were when the program was exported."""
    return _ASSERTIONS.fullmatch(target) is not None


def short_name(target: str) -> str:
    """`relu` of torch.ops.aten.relu.default and torch.ops.aten.relu_.default."""
    found = _TARGET.fullmatch(target)
    return found[1].rstrip("_") if found else target[:100]


def find_operator(target: str, *, on_rows: bool) -> Operator:
    """ModelLoadError, in the words that modules in memory are refused with, for any that is not listed."""
    found, name = _TARGET.fullmatch(target), short_name(target)
    if target.startswith("torch.ops.quantized_decomposed."):
        raise ModelLoadError(quantised(target.removeprefix("torch.ops.")))
    if found is None or name not in (_ON_ROWS if on_rows else _ON_CONSTANTS):
        raise ModelLoadError(REFUSED.get(name) or UNKNOWN.format(name))
    overloads = getattr(torch.ops.aten, found[1], None)
    if overloads is None or found[2] not in overloads.overloads():
        raise ModelLoadError(UNKNOWN.format(target[:100]))
    made: Operator = getattr(overloads, found[2])
    # Others work on lists, texts and numbers of TorchScript, or write to an argument and resize it.
    schema = made._schema  # type: ignore[attr-defined]
    returns = {str(each.type) for each in schema.returns}
    is_out = any(argument.is_out for argument in schema.arguments)
    if is_out or not returns or not returns.issubset(_RETURNS) or found[2].startswith("prim_"):
        raise ModelLoadError(UNKNOWN.format(target[:100]))
    return _CHECKED.get(name, made)


# torch takes any number for one of these and looks it up in a table, without a look at its end.
_KINDS: dict[str, type[Any]] = {
    "ScalarType": torch.dtype,
    "Layout": torch.layout,
    "MemoryFormat": torch.memory_format,
    "Device": torch.device,
}
_OPTIONAL = re.compile(r"Optional\[(\w+)\]")


def check_kinds(operator: Operator, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """ModelLoadError for a number or a text in place of a dtype, a layout or a device."""
    if not isinstance(operator, torch._ops.OpOverload):
        return
    kinds = {each.name: str(each.real_type) for each in operator._schema.arguments}
    for name, value in {**dict(zip(kinds, arguments, strict=False)), **named}.items():
        wanted = _KINDS.get(_OPTIONAL.sub(r"\1", kinds.get(name, "")))
        if wanted is not None and value is not None and not isinstance(value, wanted):
            raise ModelLoadError(f"{operator}: {name}: expected a {wanted.__name__}, got something else")


def _batch_norm(x: Any, *arguments: Any) -> Any:
    *tensors, momentum, eps = arguments
    return torch.ops.aten.batch_norm.default(x, *tensors, False, momentum, eps, False), None, None


def _weight_norm(direction: Any, size: Any, dim: int = 0) -> Any:
    return direction * (size / torch.ops.aten.norm_except_dim.default(direction, 2, dim))


def _embedding_bag(table: Any, ids: Any, offsets: Any, *options: Any, **named: Any) -> Any:
    if type(offsets) is torch.Tensor and offsets.device.type == "cpu":
        steps = torch.cat([offsets.reshape(-1), torch.tensor([ids.numel()])]).diff()
        if offsets.dim() != 1 or bool((steps < 0).any()) or (offsets.numel() and int(offsets[0]) != 0):
            raise ModelLoadError("embedding_bag: expected bags that begin at 0, one behind the other")
    return torch.ops.aten.embedding_bag.padding_idx(table, ids, offsets, *options, **named)


# In place of operators that trust one tensor to have the width of another, and read past its end.
_CHECKED: dict[str, Operator] = {
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_weight_norm": _weight_norm,
    "embedding_bag": _embedding_bag,
}
