# SPDX-License-Identifier: Apache-2.0
"""`fused_mlp.from_torch`: an MLP from the torch module that a user has in memory, whatever its forward looks like. The
module is exported to a graph of ATen operators, read into a program, and compared with what was read."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.builder import Builder
from fused_mlp.models.importers.building.nodes import Place
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.torch.copy import Prepared, prepare, unwrapped
from fused_mlp.models.importers.torch.export import (
    PREFIX,
    NamedOutputs,
    export_rows,
    quietly,
    run_once,
)
from fused_mlp.models.importers.torch.graph import GraphReader
from fused_mlp.models.importers.torch.trial import (
    GIVE_SHAPE,
    FixedDtypeError,
    find_width,
    random_rows,
    runs_on,
    try_rows,
)
from fused_mlp.models.importers.verification import Run, verify
from fused_mlp.models.precision import reduce_precision
from fused_mlp.models.quantization import Precision
from fused_mlp.models.spec import Dtype
from fused_mlp.models.weights import Mlp

# Of a module that computes in float32, because its code casts to it: tolerance, and what it rounds to.
_SINGLE = {"tolerance": 2e-3, "precision": 1e-6}


@dataclass(frozen=True)
class Reading:
    """A model, and where its tensors come from."""

    mlp: Mlp
    exact: Mlp  # float64, as folded
    origins: dict[str, str]  # of those that are the module's own: its name, with .T where it is transposed
    fixed: frozenset[str]  # those in which none of its parameters is: buffers, numbers, sums, permutations
    module: nn.Module  # the user's, without wrappers
    answer: Any  # of the module to a few rows, in whatever form it answers


def from_torch(
    module: nn.Module,
    example: Tensor | NDArray[Any] | Sequence[Any] | None = None,
    *,
    in_features: int | None = None,
    dtype: Dtype | None = None,
    precision: Precision | None = None,
) -> Mlp:
    """Read the MLP that a torch module computes in eval mode, with copies of its weights.

    Any `forward` is taken that answers each row of one float tensor by itself. What no step of a program can express
    is refused, with the line of your code that asks for it. Before the result is handed out, it is compared with the
    module itself, both in float64, on random rows.

    Args:
        module: The module. It is neither changed nor run in training mode.
        example: Rows as the module takes them, of shape (rows, ...), such as `torch.zeros(1, 3, 8)`. Needed where the
            weights do not tell the width of a row. The first row becomes the model's own example.
        in_features: The width of a row, in place of an example.
        dtype: Round the weights to this dtype. Without it they keep theirs; float64 is not served, and is refused.
        precision: Keep the weights in "bfloat16" or "int8", if that costs at most 5 % of a row's outputs;
            `fused_mlp.models.precision.reduce_precision` measures the cost on rows of yours. Dynamically quantised
            linears stay int8 unless you say "float32" or a `dtype`.

    Returns:
        The model, to be given to `compile`, `save` or `serve`.

    Raises:
        ModelLoadError: The module cannot be represented; the text is one line that says why.

    Examples:
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 3))
        >>> fused_mlp.from_torch(net).spec.summary()
        '8-32-3 gelu'
    """
    example = _one_tensor(example)
    mlp = read_module(module, example, in_features=in_features, dtype=dtype).mlp
    mlp = reduce_precision(mlp, precision)
    return mlp if example is None else _with_example(mlp, example)


def read_module(
    module: nn.Module,
    example: Tensor | NDArray[Any] | Sequence[Any] | None = None,
    *,
    in_features: int | None = None,
    dtype: Dtype | None = None,
    trainable: bool = False,
) -> Reading:
    """`trainable`: as of the Builder. Numbers that are trained become part of a formula all the same where the program
    could not be written otherwise: within a condition."""
    if not isinstance(module, nn.Module):
        raise ModelLoadError(f"expected a torch.nn.Module, got {type(module).__name__}")
    module = unwrapped(module)
    if trainable and any(each.numel() == 1 for each in module.parameters()):
        with contextlib.suppress(ModelLoadError):
            return _reading(module, example, in_features, dtype, trainable=True)
        trainable = False
    return _reading(module, example, in_features, dtype, trainable=trainable)


@np.errstate(all="ignore")  # Mlp refuses what is not finite, by name
def _reading(
    module: nn.Module, example: Any, in_features: int | None, dtype: Dtype | None, *, trainable: bool
) -> Reading:
    _check_signature(module)
    shape = _row_shape(example, in_features)
    try:
        prepared = prepare(module)
        copied = NamedOutputs(prepared.module)
        found = shape or find_width(copied)
        try_rows(copied, found)
        precise = True
    except FixedDtypeError:
        prepared = prepare(module, torch.float32)
        copied = NamedOutputs(prepared.module)
        found = shape or find_width(copied)
        try_rows(copied, found)
        precise = False
    x = random_rows(copied, found)
    builder = Builder(math.prod(found), found if len(found) > 1 else None, trainable=trainable)
    exported = export_rows(copied, x)
    _read(builder, exported, copied, prepared)
    if shape is None and builder.takes_parts():
        raise ModelLoadError(
            f"{type(module).__name__} takes parts of its input, so that its width is not known: {GIVE_SHAPE}"
        )
    if shape is None and runs_on(copied, (2 * found[0],)):
        raise ModelLoadError(
            f"{type(module).__name__} takes rows of {found[0]} features and of {2 * found[0]}: {GIVE_SHAPE}"
        )
    mlp = builder.finish(dtype)
    _verify(
        builder.exact(), lambda rows: _answers(copied, rows, found), precise, casts=_has_singles(exported)
    )
    with torch.no_grad(), quietly():
        answer = prepared.module(x)
    return Reading(mlp, builder.exact(), builder.origins(), builder.fixed(), module, answer)


def _verify(exact: Mlp, run: Run, precise: bool, casts: bool) -> None:
    """`casts`: it runs in float64, but casts to float32 inside, as layers of Keras do. Where large numbers cancel out,
    that alone may break the narrower tolerance."""
    if precise:
        try:
            return verify(exact, run)
        except ModelLoadError:
            if not casts:
                raise
    return verify(exact, run, **_SINGLE)


def _has_singles(exported: ExportedProgram) -> bool:
    """Whether anything is computed in float32."""
    made = (node.meta.get("val") for node in exported.graph.nodes)
    return any(isinstance(each, Tensor) and each.dtype == torch.float32 for each in made)


def _read(builder: Builder, exported: ExportedProgram, source: NamedOutputs, prepared: Prepared) -> None:
    reader = GraphReader(builder, PREFIX, prepared.dtypes, prepared.quantized)
    inputs: list[Any] = []
    for spec in exported.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(builder.input)
            continue
        target = str(spec.target)
        tensor = exported.state_dict[target] if target in exported.state_dict else exported.constants[target]
        if isinstance(tensor, Tensor) and spec.kind != InputKind.CONSTANT_TENSOR:
            reader.name_tensor(tensor, target, trained=spec.kind == InputKind.PARAMETER)
        inputs.append(tensor)
    specs = exported.graph_signature.output_specs
    for output in specs:
        if output.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            what = (
                "its input"
                if output.target is None or output.kind != OutputKind.BUFFER_MUTATION
                else (f"its buffer {output.target.removeprefix(PREFIX)!r}")
            )
            raise ModelLoadError(
                f"it writes to {what}: every row has one answer, whatever was asked before; leave it out in eval mode"
            )
    made = reader.run(exported.graph_module, inputs)
    values = [each for each, output in zip(made, specs, strict=True) if output.kind == OutputKind.USER_OUTPUT]
    if not any(isinstance(value, Rows) for value in values):
        raise ModelLoadError("no output depends on the input")
    for name, value, has_rows in zip(source.names, values, _with_rows(exported), strict=True):
        with builder.at(Place("the answer", name)):
            if not isinstance(value, Rows):
                if not has_rows:
                    raise ModelLoadError(
                        f"output {name!r} does not depend on the input: give every row its own with "
                        ".expand(x.shape[0], -1), or leave it out"
                    )
                value = builder.constant(reader.constant(value))  # noqa: PLW2901 - the same for every row
            builder.output(name, value)


def _with_rows(exported: ExportedProgram) -> list[bool]:
    """Of each output of the module: whether its first axis is that of the rows."""
    (end,) = (node for node in exported.graph.nodes if node.op == "output")
    made = [getattr(each, "meta", {}).get("val") for each in end.args[0]]
    kinds = [spec.kind for spec in exported.graph_signature.output_specs]
    return [
        isinstance(each, Tensor) and each.dim() > 0 and isinstance(each.shape[0], torch.SymInt)
        for each, kind in zip(made, kinds, strict=True)
        if kind == OutputKind.USER_OUTPUT
    ]


def _answers(
    module: NamedOutputs, rows: NDArray[np.float64], shape: tuple[int, ...]
) -> list[NDArray[np.float64]]:
    like = random_rows(module, shape)
    answers = run_once(module, torch.from_numpy(rows).to(like.dtype).reshape(-1, *shape))
    return [each.double().reshape(len(rows), -1).numpy() for each in answers]


def _one_tensor(example: Any) -> Any:
    """A tuple of arguments, as torch.export takes them, is not an array of rows."""
    if isinstance(example, (tuple, list)) and any(isinstance(each, Tensor) for each in example):
        if len(example) != 1:
            raise ModelLoadError(f"example: expected one tensor, which is the input, got {len(example)}")
        return example[0]
    return example


def _row_shape(example: Any, in_features: int | None) -> tuple[int, ...] | None:
    if example is None:
        if in_features is None:
            return None
        if in_features < 1:
            raise ModelLoadError(f"in_features: expected 1 or more, got {in_features}")
        return (in_features,)
    sizes = tuple(example.shape if isinstance(example, Tensor) else np.shape(example))
    shape = sizes[1:] if len(sizes) > 1 else sizes
    if not shape or 0 in shape:
        raise ModelLoadError(f"example: expected rows of shape (rows, ...), got shape {sizes}")
    if in_features is not None and math.prod(shape) != in_features:
        raise ModelLoadError(f"example has rows of {math.prod(shape)} values, in_features is {in_features}")
    return shape


def _with_example(mlp: Mlp, example: Any) -> Mlp:
    values = example.detach().cpu().double().numpy() if isinstance(example, Tensor) else np.asarray(example)
    row = values.reshape(-1)[: mlp.spec.in_features].astype(np.float32)
    usable = len(row) == mlp.spec.in_features and np.isfinite(row).all()  # zeros(0, 7) has a shape and no row
    return mlp.annotated(example=row.tolist()) if usable else mlp


def _check_signature(module: nn.Module) -> None:
    """One tensor goes in."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return
    needed = [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if len(needed) > 1:
        raise ModelLoadError(
            f"{type(module).__name__}.forward takes {len(needed)} inputs ({', '.join(needed)}): one tensor of floats "
            "is served; wrap it in a module that takes one and splits it"
        )
