# SPDX-License-Identifier: Apache-2.0
"""`fused_mlp.from_state_dict` and `fused_mlp.from_safetensors`: an MLP from tensors alone. A checkpoint holds no
activations, so the caller gives them; what else the names do not tell is asked for, never guessed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.builder import Builder
from fused_mlp.models.importers.building.nodes import Constant, Place
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.checkpoints.names import Step, read_named_steps, read_steps
from fused_mlp.models.importers.checkpoints.safetensors import SafetensorsCheckpoint
from fused_mlp.models.importers.checkpoints.state_dicts import read_state_dict
from fused_mlp.models.program.chain import function_text
from fused_mlp.models.program.formula import parse
from fused_mlp.models.program.spec import DEFAULT_SLOPE, Activation, Dtype, OutputActivation
from fused_mlp.models.weights.dtypes import Array
from fused_mlp.models.weights.mlp import Mlp

if TYPE_CHECKING:
    from torch import Tensor

BATCH_NORM_EPS = 1e-5  # PyTorch's default; a checkpoint does not hold it


def from_state_dict(
    source: str | os.PathLike[str] | Mapping[str, Tensor | Array],
    *,
    activation: Activation,
    output_activation: OutputActivation = "identity",
    negative_slope: float = DEFAULT_SLOPE,
    prefix: str = "",
    name_map: Mapping[str, str] | None = None,
    transposed: bool | None = None,
    batch_norm_eps: float = BATCH_NORM_EPS,
    dtype: Dtype | None = None,
) -> Mlp:
    """Read the MLP in a state_dict, or in a `.pt` file of one, whose pickle is read as data: no code in it is run.

    A state_dict has no activations, so you name them. Layers come in the order of the state_dict.

    Args:
        source: The state_dict, or the path of a file with one.
        activation: Follows every layer but the last, and is that of every gate.
        output_activation: Follows the last layer.
        negative_slope: Of leaky_relu.
        prefix: Take only what lies below this name, such as "model.layers.3.mlp".
        name_map: Name each tensor instead, from our names to those of the checkpoint: `{"layers.0.weight":
            "encoder.fc1.weight", ...}`.
        transposed: Whether weights are stored as (in, out); needed where shapes alone do not tell.
        batch_norm_eps: Of BatchNorm, which a checkpoint does not hold.
        dtype: Round the weights to this dtype. Without it they keep theirs.

    Returns:
        The model.

    Raises:
        ModelLoadError: There is no MLP in it, or the names leave open what it is; the text says what to give.

    Examples:
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
        >>> fused_mlp.from_state_dict(net.state_dict(), activation="relu").spec.summary()
        '8-32-3 relu'
    """
    options = {name: value for name, value in locals().items() if name != "source"}
    tensors = source if isinstance(source, Mapping) else read_state_dict(Path(source))
    return _assemble(_as_arrays(tensors), ordered=True, **options)


def from_safetensors(
    path: str | os.PathLike[str],
    *,
    activation: Activation,
    output_activation: OutputActivation = "identity",
    negative_slope: float = DEFAULT_SLOPE,
    prefix: str = "",
    name_map: Mapping[str, str] | None = None,
    transposed: bool | None = None,
    batch_norm_eps: float = BATCH_NORM_EPS,
    dtype: Dtype | None = None,
) -> Mlp:
    """Read an MLP from a safetensors checkpoint: a file, an index of shards, or a directory of either.

    A checkpoint has no activations, so you name them. The arguments are those of `from_state_dict`.

    Args:
        path: The checkpoint.
        activation: Follows every layer but the last, and is that of every gate.
        output_activation: Follows the last layer.
        negative_slope: Of leaky_relu.
        prefix: Take only what lies below this name, such as "model.layers.3.mlp": a feed-forward block with the names
            of a well-known transformer, or a stack of numbered layers.
        name_map: Name each tensor instead, from our names to those of the checkpoint: `{"layers.0.weight":
            "encoder.fc1.weight", ...}`.
        transposed: Whether weights are stored as (in, out); needed where shapes alone do not tell.
        batch_norm_eps: Of BatchNorm, which a checkpoint does not hold.
        dtype: Round the weights to this dtype. Without it they keep theirs.

    Returns:
        The model.

    Raises:
        ModelLoadError: There is no MLP in it, or the names leave open what it is; the text says what to give.
    """
    options = {name: value for name, value in locals().items() if name != "path"}
    return _assemble(SafetensorsCheckpoint(path), ordered=False, **options)


@np.errstate(all="ignore")  # Mlp refuses what is not finite, by name
def _assemble(
    tensors: Mapping[str, Array],
    *,
    ordered: bool,
    activation: Activation,
    output_activation: OutputActivation,
    negative_slope: float,
    prefix: str,
    name_map: Mapping[str, str] | None,
    transposed: bool | None,
    batch_norm_eps: float,
    dtype: Dtype | None,
) -> Mlp:
    if name_map is not None and prefix:
        raise ModelLoadError("give prefix=... or name_map=..., not both: a map has whole names")
    if name_map is None:
        steps = read_steps(tensors, prefix, transposed, ordered=ordered)
    else:
        steps = read_named_steps(tensors, name_map, transposed)
    products = sum(step.linear is not None for step in steps)
    if not products:
        raise ModelLoadError("there is no linear layer in it: an MLP has at least one")
    builder = Builder(_width(steps[0]))
    x, layer = builder.input, -1
    for index, step in enumerate(steps):
        if step.norm is not None and _precedes_activation(steps, index):
            continue  # below, with its layer
        if step.norm is not None:
            x = _batch_norm(builder, x, step, batch_norm_eps)
            continue
        layer += 1
        with builder.at(Place(step.path, f"layers.{layer}")):
            x = _product(builder, x, step, function_text(activation, negative_slope))
        if index + 1 < len(steps) and _precedes_activation(steps, index + 1):
            x = _batch_norm(builder, x, steps[index + 1], batch_norm_eps)
        if layer + 1 == products:
            with builder.at(Place(f"{step.path}: {output_activation}", "output")):
                x = _activated(builder, x, output_activation, negative_slope)
        elif step.gate is None:
            with builder.at(Place(step.path, f"layers.{layer}.act")):
                x = _activated(builder, x, activation, negative_slope)
    builder.output("output", x)
    return builder.finish(dtype)


def _width(step: Step) -> int:
    first = step.linear[0].shape[-1] if step.linear is not None else (step.norm or {})["running_mean"].size
    return int(first)


def _product(builder: Builder, x: Rows, step: Step, function: str) -> Rows:
    assert step.linear is not None
    made = builder.linear(x, *map(_constant, step.linear))
    if step.gate is None:
        return made
    if step.gate[0].shape != step.linear[0].shape:
        raise ModelLoadError(
            f"gate has shape {tuple(step.gate[0].shape)}, up {tuple(step.linear[0].shape)}: they must be equal"
        )
    gate = builder.apply(builder.linear(x, *map(_constant, step.gate)), parse(function).root)
    return builder.arithmetic("multiply", gate, made)


def _activated(builder: Builder, x: Rows, name: OutputActivation, negative_slope: float) -> Rows:
    if name in ("softmax", "log_softmax"):
        return builder.softmax(x, 1, log=name == "log_softmax")
    return builder.apply(x, parse(function_text(name, negative_slope)).root)


def _batch_norm(builder: Builder, x: Rows, step: Step, eps: float) -> Rows:
    parts = {name: Constant(array) for name, array in (step.norm or {}).items()}
    with builder.at(Place(step.path, step.path)):
        return builder.batch_norm(
            x, parts["running_mean"], parts["running_var"],
            weight=parts.get("weight"), bias=parts.get("bias"), eps=eps,
        )  # fmt: skip


def _constant(array: Array | None) -> Any:
    return None if array is None else Constant(array, dtype=array.dtype.name)


def _precedes_activation(steps: list[Step], index: int) -> bool:
    """Whether the step is a batch norm between a linear layer and its activation. Numbers tell: where 0 is a
    linear layer and 1 a norm, the activation can only be 2."""
    if steps[index].norm is None or index == 0:
        return False
    if _neighbours(steps[index - 1].path, steps[index].path):
        return True
    if index + 1 < len(steps) and _neighbours(steps[index].path, steps[index + 1].path):
        return False
    raise ModelLoadError(
        f"{steps[index].path}: whether this batch norm comes before or after the activation cannot be told "
        "from the names; import the module itself, model.py:factory with state_dict=..., or an ONNX file of it"
    )


def _neighbours(left: str, right: str) -> bool:
    left_parent, _, a = left.rpartition(".")
    right_parent, _, b = right.rpartition(".")
    return left_parent == right_parent and a.isdecimal() and b.isdecimal() and int(b) == int(a) + 1


def _as_arrays(tensors: Mapping[str, Any]) -> Mapping[str, Array]:
    if sys.modules.get("torch") is None:
        return tensors  # arrays already
    from fused_mlp.models.importers.torch.tensors import ArrayMapping  # noqa: PLC0415

    return ArrayMapping(tensors)
