"""`fused_mlp.from_state_dict` and `fused_mlp.from_safetensors`: an MLP from tensors alone. A checkpoint holds no
activations, so the caller gives them; what else the names do not tell is asked for, never guessed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fused_mlp.models.dtypes import Array
from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.checkpoints.assembly import Assembler
from fused_mlp.models.importers.checkpoints.names import Step, read_named_steps, read_steps
from fused_mlp.models.importers.checkpoints.pickles import read_pickle
from fused_mlp.models.importers.checkpoints.safetensors import SafetensorsCheckpoint
from fused_mlp.models.spec import DEFAULT_SLOPE, Activation, Dtype, OutputActivation
from fused_mlp.models.weights import Mlp

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
    """The MLP in a state_dict, or in a `.pt` file of one (read with weights_only: no code in it is run).

    Layers come in the order of the state_dict. `activation` follows every layer but the last and is that of
    every gate, `output_activation` follows the last, `negative_slope` is that of leaky_relu. The other
    arguments are those of `from_safetensors`."""
    tensors = source if isinstance(source, Mapping) else read_pickle(Path(source))
    return _assemble(
        _read(_as_arrays(tensors), prefix, name_map, transposed, ordered=True),
        activation=activation,
        output_activation=output_activation,
        negative_slope=negative_slope,
        batch_norm_eps=batch_norm_eps,
        dtype=dtype,
    )


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
    """An MLP from tensors of a safetensors checkpoint: a file, an index of shards, or a directory of either.

    `prefix` picks everything below it, such as `model.layers.3.mlp`: a feed-forward block with the names of a
    well-known transformer, or a stack of numbered layers. `name_map` names each tensor instead, from our
    names to the checkpoint's: {"layers.0.weight": "encoder.fc1.weight", ...}. `transposed` says that weights
    are stored as (in, out), where shapes alone do not. `dtype` rounds the weights; without it they keep
    theirs."""
    return _assemble(
        _read(SafetensorsCheckpoint(path), prefix, name_map, transposed, ordered=False),
        activation=activation,
        output_activation=output_activation,
        negative_slope=negative_slope,
        batch_norm_eps=batch_norm_eps,
        dtype=dtype,
    )


def _read(
    tensors: Mapping[str, Array],
    prefix: str,
    name_map: Mapping[str, str] | None,
    transposed: bool | None,
    *,
    ordered: bool,
) -> list[Step]:
    if name_map is None:
        return read_steps(tensors, prefix, transposed, ordered=ordered)
    if prefix:
        raise ModelLoadError("give a prefix or a name map, not both: a name map has whole names")
    return read_named_steps(tensors, name_map, transposed)


@np.errstate(all="ignore")  # Mlp refuses what is not finite, by name
def _assemble(
    steps: list[Step],
    *,
    activation: Activation,
    output_activation: OutputActivation,
    negative_slope: float,
    batch_norm_eps: float,
    dtype: Dtype | None,
) -> Mlp:
    assembler = Assembler()
    last = max((index for index, step in enumerate(steps) if step.norm is None), default=-1)
    for index, step in enumerate(steps):
        if step.norm is not None:
            if not _precedes_activation(steps, index):
                assembler.affine(step.path, *_affine(step.path, step.norm, batch_norm_eps))
            continue
        assert step.linear is not None
        if step.gate is not None:
            assembler.gated(step.path, step.gate, step.linear, activation, _slope(activation, negative_slope))
        else:
            assembler.linear(step.path, *step.linear)
        if index + 1 < len(steps) and _precedes_activation(steps, index + 1):
            norm = steps[index + 1]
            assembler.affine(norm.path, *_affine(norm.path, norm.norm or {}, batch_norm_eps))
        if index == last:
            where = f"{step.path}: {output_activation}"
            assembler.activation(where, output_activation, _slope(output_activation, negative_slope))
        elif step.gate is None:
            assembler.activation(step.path, activation, _slope(activation, negative_slope))
    return assembler.finish(dtype)


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
        "from the names; import the module itself with from_torch, or through ONNX"
    )


def _neighbours(left: str, right: str) -> bool:
    left_parent, _, a = left.rpartition(".")
    right_parent, _, b = right.rpartition(".")
    return left_parent == right_parent and a.isdecimal() and b.isdecimal() and int(b) == int(a) + 1


def _affine(where: str, norm: Mapping[str, Array], eps: float) -> tuple[Array, Array]:
    if not {"running_mean", "running_var"} <= norm.keys():
        raise ModelLoadError(f"{where}: a batch norm without running_mean or running_var")
    parts = {name: values.astype(np.float64) for name, values in norm.items()}
    scale = 1 / np.sqrt(parts["running_var"] + eps)
    if "weight" in norm:
        scale = scale * parts["weight"]
    shift = -parts["running_mean"] * scale
    return scale, shift + parts["bias"] if "bias" in norm else shift


def _slope(activation: OutputActivation, negative_slope: float) -> float:
    return negative_slope if activation == "leaky_relu" else DEFAULT_SLOPE


def _as_arrays(tensors: Mapping[str, Any]) -> Mapping[str, Array]:
    if sys.modules.get("torch") is None:
        return tensors  # arrays already
    from fused_mlp.models.importers.torch.tensors import ArrayMapping  # noqa: PLC0415

    return ArrayMapping(tensors)
