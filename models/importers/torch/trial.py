# SPDX-License-Identifier: Apache-2.0
"""Which rows a module takes: tries it on random ones, of the shape that is given or of the widths that its weights
suggest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.importers.torch.arguments import GIVE_DICT, ask_for_example
from fused_mlp.models.importers.torch.aten import REFUSED
from fused_mlp.models.importers.torch.aten.refusals import CONVOLUTION
from fused_mlp.models.importers.torch.export import ROWS, AnswerError, NamedOutputs, failing_line, run_once

# Widths that are tried where none is given.
_MAX_CANDIDATES = 24
# Torch's errors for random floats in place of ids.
_ABOUT_IDS = re.compile(r"'indices'|used as indices|one_hot|index out of range|Class values")
# In the error, or in its line.
_ABOUT_DICTS = re.compile(r"""\[["']|no attribute '(items|keys|values|get)'|invalid data type 'str'""")
# The remedy for an unknown shape, for callers in Python.
GIVE_SHAPE = "give in_features, or an example of (rows, ...)"
# Layers that take something other than rows of floats: what is said where no width fits.
_NO_ROWS: dict[tuple[type[nn.Module], ...], str] = {
    (nn.modules.conv._ConvNd,): CONVOLUTION,
    (nn.RNNBase, nn.RNNCellBase): REFUSED["lstm"],
    (nn.MultiheadAttention,): REFUSED["scaled_dot_product_attention"],
}


class FixedDtypeError(Exception):
    """The module casts to a dtype of its own, and does not run in float64."""


class TakesDictError(ModelLoadError):
    """The module takes no tensor, but a dict of some."""


def try_rows(module: NamedOutputs, rows: Sequence[Tensor], asked: str = "") -> None:
    """Refuse, in words, a module that does not run on such rows. `asked`: what to give, where the rows may be wrong."""
    try:
        run_once(module, rows)
    except ModelLoadError:
        raise
    except Exception as error:
        if _is_about_dtypes(error) and module.dtype == torch.float64:
            raise FixedDtypeError from error
        line = failing_line(error)
        shapes = ", ".join(f"({', '.join(map(str, ('rows', *each.shape[1:])))})" for each in rows)
        if _ABOUT_IDS.search(str(error)):
            where = type(module.module).__name__ + (f" ({line})" if line else "")
            raise ModelLoadError(
                f"{where}: it looks up rows of a table by category ids, and the {'rows tried' if asked else 'example'} "
                f"of {shapes} holds values that are none: {asked or 'give ids that its tables have'}"
            ) from error
        if asked and _ABOUT_DICTS.search(f"{error} {line}"):
            where = f"{type(module.module).__name__}.forward" + (f" ({line})" if line else "")
            raise TakesDictError(f"{where} takes a dict: {GIVE_DICT}") from error
        raise ModelLoadError(
            f"{type(module.module).__name__} could not be run on {shapes} inputs: "
            f"{first_line(error) or type(error).__name__}" + (f" ({line})" if line else "")
        ) from error


def _is_about_dtypes(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and ("dtype" in str(error) or "Double" in str(error))


def random_rows(module: NamedOutputs, shape: tuple[int, ...]) -> tuple[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(ROWS, *shape, generator=generator, dtype=module.dtype),)


def find_width(module: NamedOutputs) -> tuple[int, ...]:
    """The first width, of those that the weights suggest, on which the module runs."""
    first: ModelLoadError | None = None
    for width in row_widths(module.module):
        try:
            try_rows(module, random_rows(module, (width,)), ask_for_example(module.module))
        except (AnswerError, TakesDictError):
            raise
        except ModelLoadError as error:
            first = first or error
        else:
            return (width,)
    name = type(module.module).__name__
    for path, part in module.module.named_modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
            raise ModelLoadError(f"{name} looks up rows of tables ({path}): {ask_for_example(module.module)}")
        for kinds, why in _NO_ROWS.items():
            if isinstance(part, kinds):
                where = f"layer {path}: {type(part).__name__}" if path else type(part).__name__
                raise ModelLoadError(f"{where}: {why}")
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
    """The possible widths of a row by the module's weights, the likeliest first."""
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
