# SPDX-License-Identifier: Apache-2.0
"""`fused_mlp.from_torch`: an MLP from the torch module that a user has in memory, whatever its forward looks like. The
module is exported to a graph of ATen operators, read into a program, and compared with what was read."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
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
from fused_mlp.models.importers.torch.arguments import (
    Arguments,
    ask_for_example,
    needed_parameters,
    structured,
)
from fused_mlp.models.importers.torch.aten.refusals import writes_to
from fused_mlp.models.importers.torch.copy import Prepared, prepare, unwrapped
from fused_mlp.models.importers.torch.export import (
    PREFIX,
    ROWS,
    NamedOutputs,
    check_doubles,
    export_rows,
    makes_doubles,
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
from fused_mlp.models.importers.verification import Run, keeping_apart, verify
from fused_mlp.models.program.spec import Dtype
from fused_mlp.models.weights.mlp import Mlp
from fused_mlp.models.weights.precision import reduce_precision
from fused_mlp.models.weights.quantization import Precision

Example = Tensor | NDArray[Any] | Sequence[Any] | Mapping[str, Any] | Arguments | None
# For a module whose code casts to float32: the tolerance, and the precision that is left.
_SINGLE_TOLERANCE, _SINGLE_PRECISION = 2e-3, 1e-6


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
    example: Example = None,
    *,
    in_features: int | None = None,
    dtype: Dtype | None = None,
    precision: Precision | None = None,
) -> Mlp:
    """Read the MLP that a torch module computes in eval mode, with copies of its weights.

    Any `forward` is taken that answers each row of its inputs by itself: one tensor or several, or a dict of some, of
    floats, category ids, booleans or other whole numbers. What no step of a program can express is refused, with the
    line of your code that asks for it. Before the result is handed out, it is compared with the module itself, both in
    float64, on random rows.

    Args:
        module: The module. It is neither changed nor run in training mode.
        example: Rows as the module takes them, of shape (rows, ...), such as `torch.zeros(1, 3, 8)`. Needed where the
            weights do not tell the width of a row, and of modules with several inputs or ids: a tuple of tensors, or a
            dict, `{"user": torch.tensor([3]), "x": torch.zeros(1, 8)}`. Names and dtypes of the inputs are those of
            `forward` and of the example. The first row becomes the model's own example.
        in_features: The width of a row, in place of an example.
        dtype: Round the weights to this dtype. Without it they keep theirs; float64 is not served, and is refused.
        precision: Keep the weights in "bfloat16" or "int8", if that costs at most 5 % of a row's outputs;
            `fused_mlp.models.weights.precision.reduce_precision` measures the cost on rows of yours.
            Dynamically quantised linears stay int8 unless you say "float32" or a `dtype`.

    Returns:
        The model, to be given to `compile`, `save` or `serve`.

    Raises:
        ModelLoadError: The module cannot be represented; the text is one line that says why.

    Examples:
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 3))
        >>> fused_mlp.from_torch(net).spec.summary()
        '8-32-3 gelu'
    """
    mlp = read_module(module, example, in_features=in_features, dtype=dtype).mlp
    mlp = reduce_precision(mlp, precision)
    return mlp if example is None else _with_example(mlp, module, example)


def read_module(
    module: nn.Module,
    example: Example = None,
    *,
    in_features: int | None = None,
    dtype: Dtype | None = None,
    trainable: bool = False,
) -> Reading:
    """`trainable`: as of the Builder. Trained numbers within a condition still become part of a formula: the program
    could not be written without."""
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
    arguments = structured(module, example)
    if arguments is not None and arguments.is_plain:
        example, arguments = arguments.tensors[0], None
    if arguments is None:
        _check_signature(module)
    shape = _row_shape(example, in_features) if arguments is None else None
    try:
        prepared, copied, rows = _prepared(module, arguments, shape, example)
    except ModelLoadError:
        if arguments is None or not arguments.is_one_tensor:
            raise
        arguments, shape = (
            None,
            _row_shape(example, in_features),
        )  # whole numbers, for a module that takes floats
        prepared, copied, rows = _prepared(module, arguments, shape, example)
    given = arguments.tensors if arguments is not None else (example,) if isinstance(example, Tensor) else ()
    if any(each.dtype == torch.float64 for each in given):
        check_doubles(NamedOutputs(prepare(module, torch.float32).module, arguments, torch.float32), given)
    exported = export_rows(copied, rows)
    found = tuple(rows[0].shape[1:])

    def build(apart: bool) -> tuple[Builder, Mlp]:
        if arguments is None:
            inputs: dict[str, Any] = {
                "in_features": math.prod(found),
                "input_shape": found if len(found) > 1 else None,
            }
        else:
            inputs = {"sources": arguments.sources()}
        builder = Builder(**inputs, trainable=trainable, apart=apart)
        _read(builder, exported, copied, prepared)
        if shape is None and arguments is None:
            _check_width(builder, copied, found)
        mlp = builder.finish(dtype)
        precise, casts = copied.dtype == torch.float64, _has_singles(exported)
        options = {"apart": apart, "doubles": _computes_in_double(module, mlp, arguments)}
        _verify(builder.exact(), lambda *given: _answers(copied, given, rows), precise, casts, **options)
        return builder, mlp

    builder, mlp = keeping_apart(build)
    with torch.no_grad(), quietly():
        answer = copied.answer(rows)
    return Reading(mlp, builder.exact(), builder.origins(), builder.fixed(), module, answer)


def _prepared(
    module: nn.Module, arguments: Arguments | None, shape: tuple[int, ...] | None, example: Any
) -> tuple[Prepared, NamedOutputs, tuple[Tensor, ...]]:
    """In float64, or in float32 where the module's code casts to it; with rows that it answers."""
    try:
        prepared = prepare(module)
        copied = NamedOutputs(prepared.module, arguments)
        return prepared, copied, _tried(copied, arguments, shape, example)
    except FixedDtypeError:
        prepared = prepare(module, torch.float32)
        copied = NamedOutputs(prepared.module, arguments, torch.float32)
        return prepared, copied, _tried(copied, arguments, shape, example)


def _tried(
    module: NamedOutputs, arguments: Arguments | None, shape: tuple[int, ...] | None, example: Any
) -> tuple[Tensor, ...]:
    """Rows that the module answers: random ones, or those of the example where random ones will not do."""
    if arguments is not None:
        rows: tuple[Tensor, ...] = arguments.rows(ROWS, module.dtype)
        try_rows(module, rows)
        return rows
    found = shape or find_width(module)
    rows = random_rows(module, found)
    try:
        try_rows(module, rows)
    except ModelLoadError:
        if example is None or np.shape(example)[:1] == (0,):
            raise
        values = torch.as_tensor(np.asarray(example), dtype=rows[0].dtype).reshape(-1, *found)
        rows = (values[torch.arange(ROWS) % len(values)],)
        try_rows(module, rows)
    return rows


def _check_width(builder: Builder, module: NamedOutputs, found: tuple[int, ...]) -> None:
    """Refuse a width that was found by trying, where others would do as well."""
    name = type(module.module).__name__
    if builder.takes_parts():
        raise ModelLoadError(f"{name} takes parts of its input, so that its width is not known: {GIVE_SHAPE}")
    if runs_on(module, (2 * found[0],)):
        raise ModelLoadError(f"{name} takes rows of {found[0]} features and of {2 * found[0]}: {GIVE_SHAPE}")


def _computes_in_double(module: nn.Module, mlp: Mlp, arguments: Arguments | None) -> bool:
    """Whether it does so with whole numbers, although its weights are float32."""
    fields = [(each.dtype, field.kind) for each in mlp.spec.inputs or () for field in each.fields]
    if arguments is None or not any(
        dtype in ("int32", "int64") and kind == "float" for dtype, kind in fields
    ):
        return False
    single = NamedOutputs(prepare(module, torch.float32).module, arguments, torch.float32)
    return makes_doubles(single, arguments.rows(ROWS, torch.float32))


def _verify(exact: Mlp, run: Run, precise: bool, casts: bool, **options: bool) -> None:
    """`casts`: it runs in float64, but casts to float32 inside, as layers of Keras do. Where large numbers cancel out,
    that alone may break the narrower tolerance."""
    if precise:
        try:
            return verify(exact, run, **options)
        except ModelLoadError:
            if not casts:
                raise
    return verify(exact, run, _SINGLE_TOLERANCE, precision=_SINGLE_PRECISION, **options)


def _has_singles(exported: ExportedProgram) -> bool:
    """Whether anything is computed in float32."""
    made = (node.meta.get("val") for node in exported.graph.nodes)
    return any(isinstance(each, Tensor) and each.dtype == torch.float32 for each in made)


def _read(builder: Builder, exported: ExportedProgram, source: NamedOutputs, prepared: Prepared) -> None:
    reader = GraphReader(builder, PREFIX, prepared.dtypes, prepared.quantized)
    inputs: list[Any] = []
    own = iter(builder.inputs)
    for spec in exported.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(next(own))
            continue
        target = str(spec.target)
        tensor = exported.state_dict[target] if target in exported.state_dict else exported.constants[target]
        if isinstance(tensor, Tensor) and spec.kind != InputKind.CONSTANT_TENSOR:
            reader.name_tensor(tensor, target, trained=spec.kind == InputKind.PARAMETER)
        inputs.append(tensor)
    specs = exported.graph_signature.output_specs
    for output in specs:
        if output.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            buffer = output.target is not None and output.kind == OutputKind.BUFFER_MUTATION
            name = f"its buffer {str(output.target).removeprefix(PREFIX)!r}" if buffer else "its input"
            raise ModelLoadError(writes_to(name))
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
    """Whether the first axis of each output is that of the rows."""
    (end,) = (node for node in exported.graph.nodes if node.op == "output")
    made = [getattr(each, "meta", {}).get("val") for each in end.args[0]]
    kinds = [spec.kind for spec in exported.graph_signature.output_specs]
    return [
        isinstance(each, Tensor) and each.dim() > 0 and isinstance(each.shape[0], torch.SymInt)
        for each, kind in zip(made, kinds, strict=True)
        if kind == OutputKind.USER_OUTPUT
    ]


def _answers(
    module: NamedOutputs, given: Sequence[NDArray[Any]], like: Sequence[Tensor]
) -> list[NDArray[np.float64]]:
    """given: an array for each input, (rows, values of a row)."""
    count = len(given[0])
    tensors = [
        torch.from_numpy(np.ascontiguousarray(array)).to(each.dtype).reshape(count, *each.shape[1:])
        for array, each in zip(given, like, strict=True)
    ]
    return [each.double().reshape(count, -1).numpy() for each in run_once(module, tensors)]


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


def _with_example(mlp: Mlp, module: nn.Module, example: Any) -> Mlp:
    """With the first row of the example, as a record."""
    arguments = structured(unwrapped(module), example)
    if mlp.spec.inputs is not None and arguments is not None:
        row = np.concatenate(
            [
                each.pack(tensor[:1].numpy())
                for each, tensor in zip(mlp.spec.inputs, arguments.tensors, strict=True)
            ],
            axis=1,
        )[0]
    else:
        given = example if arguments is None else arguments.tensors[0]
        values = given.detach().cpu().double().numpy() if isinstance(given, Tensor) else np.asarray(given)
        row = values.reshape(-1)[: mlp.spec.in_features].astype(np.float32)
        if mlp.spec.inputs is not None:
            row = mlp.spec.inputs[0].pack(values.reshape(-1, mlp.spec.inputs[0].width)[:1])[0]
    usable = len(row) == mlp.spec.in_features and np.isfinite(row).all()  # zeros(0, 7) has a shape and no row
    return mlp.annotated(example=row.tolist()) if usable else mlp


def _check_signature(module: nn.Module) -> None:
    """Without an example, one tensor goes in."""
    needed = needed_parameters(module)
    if len(needed) > 1:
        raise ModelLoadError(
            f"{type(module).__name__}.forward takes {len(needed)} inputs ({', '.join(needed)}): "
            f"{ask_for_example(module)}"
        )
