# SPDX-License-Identifier: Apache-2.0
"""Which rows a module takes: tries it on random ones, of the shape that is given or of the widths that its weights
suggest."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.importers.torch.aten import REFUSED
from fused_mlp.models.importers.torch.aten.refusals import IDS
from fused_mlp.models.importers.torch.export import ROWS, AnswerError, NamedOutputs, failing_line, run_once

# Widths that are tried where none is given.
_MAX_CANDIDATES = 24
# What torch says where random floats are no ids.
_ABOUT_IDS = re.compile(r"indices|one_hot|index out of range|Class values")
# What to do where a shape is not known: of callers in Python.
GIVE_SHAPE = "give in_features, or an example of (rows, ...)"
# Layers that take something other than rows of floats: what is said where no width fits.
_NO_ROWS: dict[tuple[type[nn.Module], ...], str] = {
    (nn.modules.conv._ConvNd,): REFUSED["convolution"],
    (nn.Embedding, nn.EmbeddingBag): REFUSED["embedding"],
    (nn.RNNBase, nn.RNNCellBase): REFUSED["lstm"],
    (nn.MultiheadAttention,): REFUSED["scaled_dot_product_attention"],
}


class FixedDtypeError(Exception):
    """The module casts to a dtype of its own, and does not run in float64."""


def try_rows(module: NamedOutputs, shape: tuple[int, ...]) -> None:
    """Refuse, in words, a module that does not run on such rows."""
    try:
        run_once(module, random_rows(module, shape))
    except ModelLoadError:
        raise
    except Exception as error:
        if (
            _is_about_dtypes(error)
            and next(module.parameters(), torch.zeros(0).double()).dtype == torch.float64
        ):
            raise FixedDtypeError from error
        line = failing_line(error)
        if _ABOUT_IDS.search(str(error)):
            where = type(module.module).__name__ + (f" ({line})" if line else "")
            raise ModelLoadError(f"{where}: {IDS}") from error
        raise ModelLoadError(
            f"{type(module.module).__name__} could not be run on ({', '.join(map(str, ('rows', *shape)))}) inputs: "
            f"{first_line(error)}" + (f" ({line})" if line else "")
        ) from error


def _is_about_dtypes(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and ("dtype" in str(error) or "Double" in str(error))


def random_rows(module: NamedOutputs, shape: tuple[int, ...]) -> Tensor:
    dtype = next((each.dtype for each in module.parameters() if each.is_floating_point()), torch.float64)
    return torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def find_width(module: NamedOutputs) -> tuple[int, ...]:
    """The first width, of those that the weights suggest, on which the module runs."""
    first: ModelLoadError | None = None
    for width in row_widths(module.module):
        try:
            try_rows(module, (width,))
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
        raise ModelLoadError(f"{name} has no weights that tell the width of its rows: {GIVE_SHAPE}")
    raise ModelLoadError(f"{first}; if its rows have another shape, {GIVE_SHAPE}")


def runs_on(module: NamedOutputs, shape: tuple[int, ...]) -> bool:
    """Whether it answers each of such rows."""
    try:
        answers = run_once(module, random_rows(module, shape))
    except Exception:  # whatever a user's code does with another shape
        return False
    return all(answer.dim() > 0 and len(answer) == ROWS for answer in answers)


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
