"""`fused_mlp.from_torch`: an MLP from the torch module that a user has in memory, whatever its forward looks like. The
module is exported to a graph of ATen operators, read into a program, and compared with what was read."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.importers.aten import REFUSED
from fused_mlp.models.importers.building.builder import Builder
from fused_mlp.models.importers.building.nodes import Place
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.torch_copy import prepare, unwrapped
from fused_mlp.models.importers.torch_export import (
    PREFIX,
    ROWS,
    AnswerError,
    NamedOutputs,
    export_rows,
    failing_line,
    quietly,
    run_once,
)
from fused_mlp.models.importers.torch_graph import GraphReader
from fused_mlp.models.importers.verification import TOLERANCE, verify
from fused_mlp.models.spec import Dtype
from fused_mlp.models.weights import Mlp

# Widths that are tried where none is given.
_MAX_CANDIDATES = 24
# Layers that take something other than rows of floats: what is said where no width fits.
_NO_ROWS: dict[tuple[type[nn.Module], ...], str] = {
    (nn.modules.conv._ConvNd,): REFUSED["convolution"],
    (nn.Embedding, nn.EmbeddingBag): REFUSED["embedding"],
    (nn.RNNBase, nn.RNNCellBase): REFUSED["lstm"],
    (nn.MultiheadAttention,): REFUSED["scaled_dot_product_attention"],
}
# Of a module that only runs in float32, because its code casts to it.
_SINGLE_TOLERANCE = 2e-3


@dataclass(frozen=True)
class Reading:
    """A model, and where its tensors come from."""

    mlp: Mlp
    exact: Mlp  # float64, as folded
    origins: dict[str, str]  # of those that are the module's own: its name, with .T where it is transposed
    fixed: frozenset[str]  # those in which nothing of the module's weights is: broadcasts, sums, permutations
    module: nn.Module  # the user's, without wrappers
    answer: Any  # of the module to a few rows, in whatever form it answers


def from_torch(
    module: nn.Module,
    example: Tensor | NDArray[Any] | Sequence[Any] | None = None,
    *,
    in_features: int | None = None,
    dtype: Dtype | None = None,
) -> Mlp:
    """The MLP that `module` computes in eval mode, with copies of its weights: any forward that answers each row of one
    float tensor by itself. What is no step of a program is refused by the line of the user's code that asks for it.

    The width of a row is found by itself where the weights tell it. Otherwise give `in_features`, or `example`:
    rows as the module takes them, of shape (rows, ...), such as torch.zeros(1, 3, 8). Their values do not matter.
    `dtype` rounds the weights; without it they keep theirs, and float64, which is not served, is refused. Before it is
    handed out, the program is compared with the module itself, both in float64, on random rows."""
    return read_module(module, example, in_features=in_features, dtype=dtype).mlp


def parameter_names(
    module: nn.Module,
    example: Tensor | NDArray[Any] | Sequence[Any] | None = None,
    *,
    in_features: int | None = None,
) -> dict[str, str]:
    """Which entry of `module.state_dict()` each tensor of the MLP is, by our name of it. An entry that is folded into
    others, or that others are computed from, is refused by name."""
    entries = unwrapped(module).state_dict(keep_vars=True)
    reading = read_module(module, example, in_features=in_features, dtype="float32")
    names = {ours: theirs for ours, theirs in reading.origins.items() if theirs in entries}
    used = {id(entries[theirs]) for theirs in names.values()}
    for entry, tensor in entries.items():
        if id(tensor) not in used:
            raise ModelLoadError(
                f"{entry!r} is no weight or bias of a linear layer: fold it first, with "
                "fused_mlp.from_torch(module).to_torch()"
            )
    return names


@np.errstate(all="ignore")  # Mlp refuses what is not finite, by name
def read_module(
    module: nn.Module,
    example: Tensor | NDArray[Any] | Sequence[Any] | None = None,
    *,
    in_features: int | None = None,
    dtype: Dtype | None = None,
) -> Reading:
    if not isinstance(module, nn.Module):
        raise ModelLoadError(f"expected a torch.nn.Module, got {type(module).__name__}")
    module = unwrapped(module)
    _check_signature(module)
    shape = _row_shape(example, in_features)
    try:
        prepared = prepare(module)
        copied = NamedOutputs(prepared.module)
        found = shape or _find_width(copied)
        _try(copied, found)
        tolerance = TOLERANCE
    except _FixedDtypeError:
        prepared = prepare(module, torch.float32)
        copied = NamedOutputs(prepared.module)
        found = shape or _find_width(copied)
        _try(copied, found)
        tolerance = _SINGLE_TOLERANCE
    x = _rows(copied, found)
    builder = Builder(math.prod(found), found if len(found) > 1 else None)
    _read(builder, export_rows(copied, x), copied, prepared.dtypes)
    if shape is None and builder.takes_parts():
        raise ModelLoadError(
            f"{type(module).__name__} takes parts of its input, so that its width is not known: give in_features"
        )
    mlp = builder.finish(dtype)
    verify(builder.exact(), lambda rows: _answers(copied, rows, found), tolerance)
    with torch.no_grad(), quietly():
        answer = prepared.module(x)
    return Reading(mlp, builder.exact(), builder.origins(), builder.fixed(), module, answer)


def _read(builder: Builder, exported: ExportedProgram, source: NamedOutputs, dtypes: dict[str, str]) -> None:
    reader = GraphReader(builder, PREFIX, dtypes)
    inputs: list[Any] = []
    for spec in exported.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(builder.input)
            continue
        target = str(spec.target)
        tensor = exported.state_dict[target] if target in exported.state_dict else exported.constants[target]
        if isinstance(tensor, Tensor) and spec.kind != InputKind.CONSTANT_TENSOR:
            reader.name_tensor(tensor, target)
        inputs.append(tensor)
    made = reader.run(exported.graph_module, inputs)
    kinds = [spec.kind for spec in exported.graph_signature.output_specs]
    values = [each for each, kind in zip(made, kinds, strict=True) if kind == OutputKind.USER_OUTPUT]
    for name, value in zip(source.names, values, strict=True):
        with builder.at(Place("the answer", name)):
            if not isinstance(value, Rows):
                raise ModelLoadError(f"output {name!r} does not depend on the input")
            builder.output(name, value)


class _FixedDtypeError(Exception):
    """The module casts to a dtype of its own, and does not run in float64."""


def _try(module: NamedOutputs, shape: tuple[int, ...]) -> None:
    """Refuse, in words, a module that does not run on such rows."""
    try:
        run_once(module, _rows(module, shape))
    except ModelLoadError:
        raise
    except Exception as error:
        if (
            _is_about_dtypes(error)
            and next(module.parameters(), torch.zeros(0).double()).dtype == torch.float64
        ):
            raise _FixedDtypeError from error
        line = failing_line(error)
        raise ModelLoadError(
            f"{type(module.module).__name__} could not be run on ({', '.join(map(str, ('rows', *shape)))}) inputs: "
            f"{first_line(error)}" + (f" ({line})" if line else "")
        ) from error


def _is_about_dtypes(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and ("dtype" in str(error) or "Double" in str(error))


def _rows(module: NamedOutputs, shape: tuple[int, ...]) -> Tensor:
    dtype = next((each.dtype for each in module.parameters() if each.is_floating_point()), torch.float64)
    return torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def _answers(
    module: NamedOutputs, rows: NDArray[np.float64], shape: tuple[int, ...]
) -> list[NDArray[np.float64]]:
    like = _rows(module, shape)
    answers = run_once(module, torch.from_numpy(rows).to(like.dtype).reshape(-1, *shape))
    return [each.double().reshape(len(rows), -1).numpy() for each in answers]


def _row_shape(example: Any, in_features: int | None) -> tuple[int, ...] | None:
    if example is None:
        if in_features is None:
            return None
        if in_features < 1:
            raise ModelLoadError(f"in_features: expected 1 or more, got {in_features}")
        return (in_features,)
    sizes = tuple(np.shape(example.detach().cpu().numpy() if isinstance(example, Tensor) else example))
    shape = sizes[1:] if len(sizes) > 1 else sizes
    if not shape or 0 in shape:
        raise ModelLoadError(f"example: expected rows of shape (rows, ...), got shape {sizes}")
    if in_features is not None and math.prod(shape) != in_features:
        raise ModelLoadError(f"example has rows of {math.prod(shape)} values, in_features is {in_features}")
    return shape


def _find_width(module: NamedOutputs) -> tuple[int, ...]:
    """The first width, of those that the weights suggest, on which the module runs."""
    first: ModelLoadError | None = None
    for width in row_widths(module.module):
        try:
            _try(module, (width,))
        except AnswerError:
            raise
        except ModelLoadError as error:
            first = first or error
        else:
            return (width,)
    for path, part in module.module.named_modules():
        for kinds, why in _NO_ROWS.items():
            if isinstance(part, kinds):
                where = f"layer {path}: {type(part).__name__}" if path else type(part).__name__
                raise ModelLoadError(f"{where}: {why}")
    name = type(module.module).__name__
    if first is None:
        raise ModelLoadError(
            f"{name} has no weights that tell the width of its rows: give in_features, or an example of (rows, ...)"
        )
    raise ModelLoadError(
        f"{first}; if its rows have another shape, give in_features, or an example of (rows, ...)"
    )


def row_widths(module: nn.Module) -> list[int]:
    """What the width of a row may be, by the module's weights, the likeliest first."""
    return list(dict.fromkeys(_candidates(module)))[:_MAX_CANDIDATES]


def _candidates(module: nn.Module) -> Iterator[int]:
    parts = list(module.modules())
    yield from (part.in_features for part in parts if isinstance(part, nn.Linear))
    for part in parts:
        if isinstance(part, (nn.LayerNorm, nn.RMSNorm)):
            yield part.normalized_shape[-1]
        elif isinstance(part, nn.BatchNorm1d):
            yield part.num_features
    matrices = [tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.dim() > 0]
    yield from (tensor.shape[-1] for tensor in matrices if tensor.dim() == 2)
    yield from (size for tensor in matrices for size in tensor.shape)


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
