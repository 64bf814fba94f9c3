# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a checkpoint make up which layer, and in which order, told by their names and shapes: the
feed-forward blocks of well-known transformers, stacks of numbered layers, or an explicit name map."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.weights.dtypes import Array

Parameters = tuple[Array, Array | None]  # weight (out, in), bias (out,)


@dataclass(frozen=True)
class Step:
    """A linear layer, a gated one (`gate` beside it), or a batch norm (`norm`, its tensors by field)."""

    path: str
    linear: Parameters | None = None
    gate: Parameters | None = None
    norm: Mapping[str, Array] | None = None


class _Block(NamedTuple):
    """A feed-forward block, by the last part of its modules' names."""

    gate: str | None
    up: str
    down: str | None
    conv1d: bool = False  # weights may be stored as (in, out)


_BLOCKS = (
    _Block("gate_proj", "up_proj", "down_proj"),  # Llama, Mistral, Qwen, Gemma
    _Block("gate_proj", "up_proj", None),  # GatedLinear, as Mlp.to_torch makes it
    _Block(None, "up_proj", "down_proj"),  # Nemotron
    _Block(None, "gate_up_proj", "down_proj"),  # Phi-3: gate above up in one matrix
    _Block("w1", "w3", "w2"),  # Llama as first published, Mixtral
    _Block("wi_0", "wi_1", "wo"),  # T5 1.1
    _Block(None, "wi", "wo"),  # T5
    _Block("c_fc_0", "c_fc_1", "c_proj"),  # EXAONE
    _Block(None, "c_fc", "c_proj", conv1d=True),  # GPT-2, whose Conv1D stores (in, out)
    _Block(None, "fc_in", "fc_out"),  # GPT-J
    _Block(None, "dense_h_to_4h", "dense_4h_to_h"),  # GPT-NeoX, BLOOM, Falcon
)
_NORM_FIELDS = {"running_mean", "running_var", "num_batches_tracked"}
_FIELDS = {"weight", "bias"} | _NORM_FIELDS
_OUR_NAME = re.compile(r"layers\.(\d{1,3})\.(weight|bias|gate_weight|gate_bias)", re.ASCII)
_EXAMPLES = "layers.0.weight, layers.0.bias, layers.0.gate_weight or layers.0.gate_bias"


def read_steps(
    tensors: Mapping[str, Array], prefix: str, transposed: bool | None, *, ordered: bool
) -> list[Step]:
    """All tensors below `prefix`. `ordered`: the mapping lists them in the order of the forward pass."""
    modules = _group(tensors, prefix)
    leaves: dict[str, set[str]] = {}
    for path in modules:
        parent, _, leaf = path.rpartition(".")
        leaves.setdefault(parent, set()).add(leaf)
    # Modules of one parent that form a known block share one place in the order.
    places: dict[str, list[Step]] = {}
    for path, fields in modules.items():
        parent = path.rpartition(".")[0]
        if parent in places:
            continue
        if block := _read_block(parent, leaves[parent], modules, transposed):
            places[parent] = block
        elif fields.keys() & _NORM_FIELDS:
            if not {"running_mean", "running_var"} <= fields.keys():
                raise ModelLoadError(f"{path}: a batch norm without running_mean or running_var")
            places[path] = [Step(path, norm=fields)]
        else:
            places[path] = [Step(path, _read_linear(path, fields, transposed))]
    order = list(places) if ordered else _sort(places)
    return [step for place in order for step in places[place]]


def read_named_steps(
    tensors: Mapping[str, Array], name_map: Mapping[str, str], transposed: bool | None
) -> list[Step]:
    """The tensors that `name_map` names, from our names (`layers.0.weight`) to those of the checkpoint."""
    layers: dict[int, dict[str, str]] = {}
    for ours, name in name_map.items():
        match = _OUR_NAME.fullmatch(ours)
        if match is None:
            raise ModelLoadError(f"name_map=...: {ours!r} is not a name such as {_EXAMPLES}")
        if name not in tensors:
            raise ModelLoadError(f"name_map=...: there is no tensor {name!r}; {_some_of(tensors)}")
        layers.setdefault(int(match[1]), {})[match[2]] = name
    steps = []
    for index in range(max(layers, default=-1) + 1):
        names = layers.get(index, {})
        for half in ("", "gate_"):
            if half + "weight" not in names and (not half or half + "bias" in names):
                raise ModelLoadError(f"name_map=...: layers.{index}.{half}weight is missing")
        path = names["weight"].removesuffix(".weight")
        fields = {field: tensors[name] for field, name in names.items()}
        gate = None
        if "gate_weight" in fields:
            gate = _orient(names["gate_weight"], fields["gate_weight"], fields.get("gate_bias"), transposed)
        steps.append(Step(path, _read_linear(path, fields, transposed), gate))
    return steps


def _group(tensors: Mapping[str, Array], prefix: str) -> dict[str, dict[str, Array]]:
    """The tensors below the prefix by the module they belong to, then by field."""
    prefix = prefix.rstrip(".")
    modules: dict[str, dict[str, Array]] = {}
    for name in tensors:
        if prefix and not name.startswith(f"{prefix}."):
            continue
        path, _, field = name.rpartition(".")
        if field not in _FIELDS:
            raise ModelLoadError(
                f"tensor {name!r} is not part of an MLP: expected names that end in weight or bias; "
                "narrow prefix=... or give name_map=..."
            )
        modules.setdefault(path, {})[field] = tensors[name]
    if not modules:
        what = f"no tensor starts with '{prefix}.'" if prefix else "there are no tensors"
        raise ModelLoadError(f"{what}; {_some_of(tensors)}")
    for path, fields in modules.items():
        if "weight" not in fields and not fields.keys() & _NORM_FIELDS:
            raise ModelLoadError(f"{path} has a bias but no weight")
    return modules


def _read_block(
    parent: str, leaves: set[str], modules: Mapping[str, Mapping[str, Array]], transposed: bool | None
) -> list[Step]:
    """The steps of the block that exactly these leaves form, or none."""
    paths = {leaf: f"{parent}.{leaf}" if parent else leaf for leaf in leaves}
    for block in _BLOCKS:
        parts = [leaf for leaf in (block.gate, block.up, block.down) if leaf is not None]
        if leaves != set(parts):
            continue
        read = {
            leaf: _read_linear(paths[leaf], modules[paths[leaf]], transposed, block.conv1d) for leaf in parts
        }
        gate, up = read[block.gate] if block.gate else None, read[block.up]
        if block.gate == "w1" and gate and gate[0].shape != up[0].shape:
            return []  # three numbered layers
        if block.up == "gate_up_proj":
            gate, up = _halves(paths[block.up], up)
        down = [Step(paths[block.down], read[block.down])] if block.down else []
        return [Step(paths[block.up], up, gate), *down]
    return []


def _read_linear(
    path: str, fields: Mapping[str, Array], transposed: bool | None, conv1d: bool = False
) -> Parameters:
    return _orient(path, fields["weight"], fields.get("bias"), transposed, conv1d)


def _orient(
    path: str, weight: Array, bias: Array | None, transposed: bool | None, conv1d: bool = False
) -> Parameters:
    """The weight as (out, in), by `transposed` if given, else by the length of the bias."""
    if weight.ndim != 2:
        raise ModelLoadError(
            f"{path}: expected a weight of two dimensions, got shape {tuple(weight.shape)}: "
            "of tensors alone, linear layers and batch norms are read; import the module with them, "
            "model.py:factory with state_dict=..."
        )
    if transposed is not None:
        return (weight.T if transposed else weight), bias
    rows, columns = weight.shape
    if bias is not None and rows != columns:
        return (weight.T if tuple(bias.shape) == (columns,) else weight), bias
    if conv1d:
        raise ModelLoadError(
            f"{path}: a weight of shape ({rows}, {columns}) may be (out, in) or, as in GPT-2, (in, out): "
            "say which with transposed=False or transposed=True"
        )
    return weight, bias


def _halves(path: str, fused: Parameters) -> tuple[Parameters, Parameters]:
    weight, bias = fused
    half, rest = divmod(weight.shape[0], 2)
    if rest:
        raise ModelLoadError(f"{path}: {weight.shape[0]} outputs cannot be halved into gate and up")
    if bias is None:
        return (weight[:half], None), (weight[half:], None)
    return (weight[:half], bias[:half]), (weight[half:], bias[half:])


def _sort(paths: Iterable[str]) -> list[str]:
    """In the order of the numbers in the names. Refused where the numbers do not decide: alphabetical order is not the
    order of layers."""
    ordered = sorted(paths, key=_tokens)
    for left, right in pairwise(ordered):
        # Equal beginnings, then a number each.
        first = next(
            (pair for pair in zip(_tokens(left), _tokens(right), strict=False) if pair[0] != pair[1]), None
        )
        if first is None or first[0][0] or first[1][0]:
            raise ModelLoadError(
                f"the order of {left} and {right} cannot be told from their names; give name_map=..."
            )
    return ordered


def _tokens(path: str) -> list[tuple[str, int]]:
    """`fc12` as ("fc", 0), ("", 12): text and numbers, each comparable with the other."""
    found = re.findall(r"[0-9]{1,18}|[^0-9]+", path)
    return [("", int(token)) if token[0] in "0123456789" else (token, 0) for token in found]


def _some_of(names: Iterable[str]) -> str:
    """A few of the names there are, for an error text."""
    listed = sorted(names)
    if not listed:
        return "it is empty"
    more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
    return f"it has {', '.join(listed[:4])}{more}"
