# SPDX-License-Identifier: Apache-2.0
"""The arguments of a module: the tensors of an example, in the structure that its forward wants, under the names that
callers will use. Owns the words for an example that is missing or does not fit."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter as _Parameter
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_flatten_with_path, tree_leaves, tree_unflatten

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import Source
from fused_mlp.models.program.inputs import InputDtype

_DTYPES: dict[torch.dtype, InputDtype] = {
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}
_LOOKS = "ids as whole numbers, torch.tensor([3, 7]), floats as (rows, ...)"
GIVE_DICT = f"give an example of it, example={{'user': user, 'x': x}}, with its own names: {_LOOKS}"
_UNUSUAL = re.compile(r"[^A-Za-z0-9_./:-]+")


@dataclass(frozen=True)
class Arguments:
    """`tensors`: the leaves of the structure, (rows, ...) each, with the same number of rows; `others`: what is no
    tensor, by its place among all leaves. `offsets`: where the bags of an nn.EmbeddingBag start, by their place, and
    the place of their ids, which are (rows, ids) here and lie side by side in the call."""

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    others: Mapping[int, Any]
    structure: TreeSpec
    offsets: Mapping[int, int] = field(default_factory=dict)

    def call(self, module: nn.Module, tensors: Sequence[Tensor]) -> Any:
        given = iter(tensors)
        others = {**self.others, **self.offsets}
        count = len(tensors) + len(others)
        leaves = [others[at] if at in others else next(given) for at in range(count)]
        for at, ids_at in self.offsets.items():
            ids = leaves[ids_at]
            leaves[at] = torch.arange(0, ids.numel(), ids.shape[1], dtype=ids.dtype)
            leaves[ids_at] = ids.reshape(-1)
        positional, named = tree_unflatten(leaves, self.structure)
        return module(*positional, **named)

    @property
    def is_plain(self) -> bool:
        """One tensor of floats, as the only argument."""
        return self.is_one_tensor and self.tensors[0].is_floating_point()

    @property
    def is_one_tensor(self) -> bool:
        count = len(self.tensors) + len(self.others) + len(self.offsets)
        alone = tree_unflatten([None] * count, self.structure)
        return bool(alone == ((None,), {}))

    def sources(self) -> list[Source]:
        return [
            Source(name, tuple(tensor.shape[1:]), _DTYPES.get(tensor.dtype, "float32"))
            for name, tensor in zip(self.names, self.tensors, strict=True)
        ]

    def rows(self, count: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """The example's own rows, again and again; its floats in that dtype."""
        order = torch.arange(count) % len(self.tensors[0])
        return tuple(
            each[order].to(dtype) if each.is_floating_point() else each[order] for each in self.tensors
        )


def _takes_any(module: nn.Module, kind: Any) -> bool:
    return any(each.kind == kind for each in _signature(module))


def structured(module: nn.Module, example: Any) -> Arguments | None:
    """The arguments that an example stands for; None where it is rows of one float tensor."""
    if isinstance(example, Arguments):
        return example
    if isinstance(example, Mapping):
        for name, each in example.items():
            if isinstance(each, list) and not any(map(_is_tensor, tree_leaves(each))):
                raise ModelLoadError(
                    f"example: {name!r} is a list: expected a tensor or an array, torch.tensor(...)"
                )
        names = _parameters(module)
        as_named = set(example) <= set(names)
        if _takes_any(module, _Parameter.VAR_KEYWORD):
            as_named = set(needed_parameters(module)) <= set(example)
        call: Any = ((), dict(example)) if as_named else ((dict(example),), {})
    elif isinstance(example, (tuple, list)) and any(map(_is_tensor, tree_leaves(example))):
        names = _parameters(module)
        if len(example) > len(names) and names and not _takes_any(module, _Parameter.VAR_POSITIONAL):
            raise ModelLoadError(
                f"example: {type(module).__name__}.forward takes {len(names)} inputs ({', '.join(names)}), got "
                f"{len(example)}"
            )
        call = (tuple(example), {})
    elif isinstance(example, (Tensor, np.ndarray)) and not _is_float(example):
        call = ((example,), {})
    else:
        return None
    return _flattened(module, call)


def ask_for_example(module: nn.Module) -> str:
    """Shows what an example of its inputs looks like."""
    names = _parameters(module)
    if len(names) > 1:
        wanted = "an example of each, example={" + ", ".join(f"'{name}': {name}" for name in names) + "}"
    else:
        wanted = f"an example, example={next(iter(names), 'x')}"
    return f"give {wanted}, of one or more rows: {_LOOKS}"


def needed_parameters(module: nn.Module) -> list[str]:
    """The names of the parameters of forward that have no default."""
    return _parameters(module, needed=True)


def _parameters(module: nn.Module, *, needed: bool = False) -> list[str]:
    return [
        each.name
        for each in _signature(module)
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        and not (needed and each.default is not each.empty)
    ]


def _signature(module: nn.Module) -> list[_Parameter]:
    try:
        return list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return []


def positional(names: Sequence[str], tensors: Sequence[Tensor]) -> Arguments:
    """Tensors that are given one after the other, under names of their own."""
    _, structure = tree_flatten((tuple(tensors), {}))
    clean = [_UNUSUAL.sub("_", name[:100]).lstrip("./:-") or "input" for name in names]
    if len(set(clean)) < len(clean):
        clean = [f"{name}_{at}" for at, name in enumerate(clean)]
    return Arguments(tuple(clean), tuple(tensors), {}, structure)


def _flattened(module: nn.Module, call: Any) -> Arguments:
    for each in (*call[0], *call[1].values()):
        if type(each).__name__.endswith("JaggedTensor"):
            raise ModelLoadError(
                f"example: {type(each).__name__}s are not served: give ids and offsets, or ids of shape (rows, n)"
            )
    leaves, structure = tree_flatten_with_path(call)
    own = _parameters(module)
    found: dict[int, tuple[str, Tensor]] = {}
    others: dict[int, Any] = {}
    for at, (path, leaf) in enumerate(leaves):
        if _is_tensor(leaf):
            name = _name([_key(key) for key in path], own)
            found[at] = (
                name,
                leaf.detach().cpu() if isinstance(leaf, Tensor) else torch.from_numpy(np.array(leaf)),
            )
        elif isinstance(leaf, (list, str)):
            raise ModelLoadError(f"example: expected tensors or arrays, got {type(leaf).__name__}")
        else:
            others[at] = leaf
    offsets = _take_offsets(found)
    if not found:
        raise ModelLoadError(f"example: expected tensors of shape (rows, ...), got {_kinds(others)}")
    names, tensors = (list(each) for each in zip(*found.values(), strict=True))
    if len(set(names)) < len(names):
        names = [f"{name}_{at}" for at, name in enumerate(names)]
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.dim() == 0 or tensor.numel() == 0 or len(tensor) != len(tensors[0]):
            shapes = ", ".join(f"{each} {tuple(of.shape)}" for each, of in zip(names, tensors, strict=True))
            raise ModelLoadError(
                f"example: expected the same rows in each, (rows, ...), got {shapes}; see {name!r}"
            )
    return Arguments(tuple(names), tuple(tensors), others, structure, offsets)


def _kinds(others: Mapping[int, Any]) -> str:
    return ", ".join(sorted({type(each).__name__ for each in others.values()})) or "none"


def _take_offsets(found: dict[int, tuple[str, Tensor]]) -> dict[int, int]:
    """Ids and the offsets of their bags, as nn.EmbeddingBag takes them, become one tensor (rows, ids), as wide as the
    longest bag. Offsets are known by their name, and belong to the ids before them."""
    taken: dict[int, int] = {}
    for (ids_at, (name, ids)), (at, (offsets_name, offsets)) in pairwise(list(found.items())):
        if "offset" not in offsets_name.lower() or any(
            each.dim() != 1 or each.is_floating_point() for each in (ids, offsets)
        ):
            continue
        edges = [*offsets.tolist(), len(ids)]
        if edges[0] != 0 or sorted(edges) != edges:
            raise ModelLoadError(
                f"example: {offsets_name!r}: expected where bags of {name!r} start, [0, 2, ...]"
            )
        bags = [ids[start:stop] for start, stop in pairwise(edges)]
        found[ids_at] = name, torch.nn.utils.rnn.pad_sequence(bags, batch_first=True)
        del found[at]
        taken[at] = ids_at
    return taken


def _key(part: Any) -> Any:
    """The key in a dict, the field of a named tuple, or the position."""
    return getattr(part, "key", getattr(part, "name", getattr(part, "idx", None)))


def _name(path: list[Any], own: list[str]) -> str:
    """`path`: (0 for positional or 1 for named, position or name, ...). The innermost name, or the parameter's."""
    first = path[1]
    if isinstance(first, int):
        first = own[first] if first < len(own) else f"input_{first}"
    keys = [first, *path[2:]]
    words = [str(key) for key in keys if isinstance(key, str)]
    numbers = [str(key) for key in keys if isinstance(key, int)]
    return _UNUSUAL.sub("_", "_".join([words[-1], *numbers])).lstrip("./:-") or "input"


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _is_float(value: Tensor | np.ndarray[Any, Any]) -> bool:
    return value.is_floating_point() if isinstance(value, Tensor) else value.dtype.kind == "f"
