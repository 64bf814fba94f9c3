# SPDX-License-Identifier: Apache-2.0
"""An MLP in memory: a spec and its tensors, as numpy arrays. Knows nothing of files; torch only where `to_torch` is
called or a torch tensor is handed in."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fused_mlp.extras import install_command
from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.program.inputs import Input, InputError
from fused_mlp.models.program.spec import Dtype, MlpSpec, Step
from fused_mlp.models.weights.dtypes import Array, empty_at_line, named_dtype
from fused_mlp.models.weights.precision_error import PrecisionError
from fused_mlp.models.weights.quantization import Int8Matrix, Precision, Reduced, check_reduced, widened
from fused_mlp.models.weights.tables import is_table

if TYPE_CHECKING:
    from torch import nn


_NONE: Reduced = MappingProxyType({})
# One row: its numbers; of a model with named inputs, those of each.
Example: TypeAlias = tuple[float, ...] | dict[str, tuple[float | str, ...]]


@dataclass(frozen=True)
class LayerWeights:
    """weight: (out, in), bias: (out,); a gated layer has gate_weight and gate_bias of the same shapes."""

    weight: Array
    bias: Array | None = None
    gate_weight: Array | None = None
    gate_bias: Array | None = None

    def named(self) -> Iterator[tuple[str, Array]]:
        for name in ("weight", "bias", "gate_weight", "gate_bias"):
            tensor = getattr(self, name)
            if tensor is not None:
                yield name, tensor


class Mlp:
    """A model in memory: what it computes (`spec`) and its tensors, validated. Treat it as immutable.

    Made by `from_torch`, `from_onnx`, `from_state_dict`, `from_safetensors` and `load`. The tensors are copies: numpy
    arrays, C-contiguous, in the spec's dtype, finite. Large tables of a saved version are mapped from their file
    instead, and not read to look for NaN.

    Args:
        spec: What it computes.
        tensors: By name, numpy arrays or torch tensors; those of a chain may be given layer by layer.
        example: An input row to try the model with; of a model with named inputs a dict of them.
        source: In words, where the model came from.
        reduced: The matrices that are kept in fewer bits, by name; `tensors` need not have them. They are widened for
            everything that does not multiply them as they are.
        error: What these have cost, where it was measured.

    Attributes:
        quantized: The matrices that the source of an import keeps in int8; `reduce_precision` makes them int8 again.

    Raises:
        ModelLoadError: The tensors do not fit the spec, or are not finite; the text names the tensor.
    """

    reduced: Reduced = _NONE
    error: PrecisionError | None = None
    quantized: frozenset[str] = frozenset()

    def __init__(
        self,
        spec: MlpSpec,
        tensors: Mapping[str, Array] | Sequence[LayerWeights],
        *,
        example: Sequence[float] | Mapping[str, Any] | None = None,
        source: str = "",
        reduced: Reduced = _NONE,
        error: PrecisionError | None = None,
    ) -> None:
        if not isinstance(tensors, Mapping):
            tensors = _by_name(spec, tensors)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        check_shapes(spec, shapes | {name: tuple(matrix.shape) for name, matrix in reduced.items()})
        for name, matrix in reduced.items():
            if (wrong := check_reduced(matrix, table=name in spec.tables)) is not None:
                raise ModelLoadError(f"tensor {name!r}: {wrong}")
        self.spec = spec
        self.reduced = reduced
        self.error = error
        self._tensors = {
            name: _own(name, tensors[name], spec.dtype) for name, _ in spec.shapes() if name not in reduced
        }
        self.example = check_example(spec, example)
        self.source = source

    def tensors(self) -> dict[str, Array]:
        """By name, as in `model.safetensors`: `layers.0.weight`, `blocks.3.norm.bias`, ... Reduced ones are widened."""
        return {
            name: widened(self.reduced[name]) if name in self.reduced else self._tensors[name]
            for name, _ in self.spec.shapes()
        }

    def unreduced(self) -> dict[str, Array]:
        """The tensors that are not `reduced`, by name."""
        return dict(self._tensors)

    def tensor(self, step: Step, name: str) -> Array | None:
        """A tensor of a step by the last part of its name (`weight`, `gate_bias`, ...); None if it has none."""
        name = f"{step.prefix}.{name}"
        return widened(self.reduced[name]) if name in self.reduced else self._tensors.get(name)

    def table_rows(self, step: Step, name: str, ids: NDArray[np.int32]) -> Array:
        """Some rows of a tensor, which may be too large to be copied or widened as a whole. ids: any shape."""
        name = f"{step.prefix}.{name}"
        reduced = self.reduced.get(name)
        if isinstance(reduced, Int8Matrix):
            return reduced.values[ids] * reduced.scales[ids][..., None]
        return (self._tensors[name] if reduced is None else reduced)[ids]

    @property
    def precision(self) -> Precision:
        """The one of fewest bits among its matrices."""
        if any(isinstance(matrix, Int8Matrix) for matrix in self.reduced.values()):
            return "int8"
        return "bfloat16" if self.reduced or self.spec.dtype == "bfloat16" else "float32"

    @property
    def layers(self) -> tuple[LayerWeights, ...]:
        """The weights of a plain chain, layer by layer."""
        if self.spec.layers is None:
            raise ModelLoadError(f"{self.spec.summary()} is no chain of layers")
        tensors = self.tensors()
        return tuple(
            LayerWeights(**{name: tensors[f"{step.prefix}.{name}"] for name in step.shapes((1,))})
            for step in self.spec.steps
            if step.op in ("linear", "gated")
        )

    def annotated(
        self,
        *,
        labels: Sequence[str] | None = None,
        description: str | None = None,
        example: Sequence[float] | Mapping[str, Any] | None = None,
        source: str | None = None,
    ) -> Mlp:
        """The same weights with other labels, description, example or source; what is None stays as it was."""
        fields = self.spec.model_dump()
        if labels is not None:
            fields["labels"] = tuple(labels)
        if description is not None:
            fields["description"] = description
        other = copy.copy(self)
        try:
            other.spec = MlpSpec.model_validate(fields)
        except ValueError as error:
            raise ModelLoadError.from_validation(error) from None
        if example is not None:
            other.example = check_example(other.spec, example)
        if source is not None:
            other.source = source
        return other

    def rounded_to(self, dtype: Dtype) -> Mlp:
        """The same model with all of its tensors in one dtype, none of them reduced."""
        spec = self.spec.model_copy(update={"dtype": dtype})
        return Mlp(spec, self.tensors(), example=self.example, source=self.source)

    def with_reduced(self, reduced: Reduced) -> Mlp:
        """The same model with these of its matrices in fewer bits, which the caller has made from them and checked; an
        error is not known. Tensors are shared."""
        other = copy.copy(self)
        other.reduced, other.error, other.quantized = reduced, None, frozenset()
        other._tensors = {name: tensor for name, tensor in self._tensors.items() if name not in reduced}
        return other

    @property
    def reduced_share(self) -> float:
        """The share of the numbers in its matrices that are kept in fewer bits."""
        sizes = {name: math.prod(shape) for name, shape in self.spec.shapes() if len(shape) == 2}
        return sum(sizes[name] for name in self.reduced) / (sum(sizes.values()) or 1)

    def to_torch(self) -> nn.Module:
        """Eager modules as a PyTorch user would write them, in eval mode, with copies of the weights: an nn.Sequential
        for a chain of layers, else a module with the steps' names whose `code` is its forward. Answers what the model
        itself does: (rows,) where it squeezes, a tuple where it has several outputs."""
        try:
            from fused_mlp.models.importers.torch.writing import make_module  # noqa: PLC0415 - brings torch
        except ModuleNotFoundError as error:
            raise ImportError(f"Mlp.to_torch needs torch: {install_command('torch')}") from error
        return make_module(self)

    def __repr__(self) -> str:
        kept = self.precision if self.reduced else self.spec.dtype
        return f"Mlp({self.spec.summary()}, {kept}, {self.spec.parameters:,} parameters)"


def _by_name(spec: MlpSpec, layers: Sequence[LayerWeights]) -> dict[str, Array]:
    steps = [step for step in spec.steps if step.op in ("linear", "gated")]
    if spec.layers is None or len(layers) != len(steps):
        raise ModelLoadError(f"{len(layers)} layers of weights for {len(steps)} in the spec")
    return {
        f"{step.prefix}.{name}": tensor
        for step, layer in zip(steps, layers, strict=True)
        for name, tensor in layer.named()
    }


def expected_shapes(spec: MlpSpec) -> dict[str, tuple[int, ...]]:
    """The tensors a model of this spec has, by name."""
    return dict(spec.shapes())


def check_shapes(spec: MlpSpec, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse, by name, the first tensor that is missing, unknown or of another shape than the spec says."""
    expected = expected_shapes(spec)
    for name in expected:
        if name not in shapes:
            raise ModelLoadError(f"tensor {name!r} is missing: the spec expects shape {expected[name]}")
    for name, shape in shapes.items():
        if name not in expected:
            raise ModelLoadError(f"tensor {name[:200]!r} is not part of this model's spec")
        if shape != expected[name]:
            raise ModelLoadError(f"tensor {name!r}: expected shape {expected[name]}, got {shape}")


def _own(name: str, tensor: Array, dtype: Dtype) -> Array:
    """A copy that nothing else writes to: the source may be a module in training."""
    given = tensor if isinstance(tensor, np.ndarray) else _from_tensor(name, tensor)
    if is_table(given) and given.dtype == named_dtype(dtype):
        return given
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is counted below
        copied = empty_at_line(given.shape, named_dtype(dtype))
        copied[...] = given
        bad = copied.size - int(np.count_nonzero(np.isfinite(copied)))
        if bad:
            why = f"too large for {dtype}" if np.isfinite(given).all() else "NaN or infinite"
            raise ModelLoadError(f"tensor {name!r}: {bad} of {copied.size} values are {why}")
    return copied


def _from_tensor(name: str, tensor: object) -> Array:
    """A torch tensor as an array. Tensors exist only in processes that have imported torch."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        raise ModelLoadError(f"tensor {name!r}: expected a numpy array, got {type(tensor).__name__}")
    from fused_mlp.models.importers.torch.tensors import to_array  # noqa: PLC0415

    return to_array(tensor, name)


def check_example(spec: MlpSpec, example: Any) -> Example | None:
    if example is None:
        return None
    if spec.inputs is not None:
        return _check_named_example(spec.inputs, example)
    values = tuple(float(value) for value in example)
    if len(values) != spec.in_features:
        raise ModelLoadError(f"example: expected {spec.in_features} values, got {len(values)}")
    if not all(map(math.isfinite, values)):
        raise ModelLoadError("example: expected finite values, got NaN or infinity")
    return values


def _check_named_example(
    inputs: tuple[Input, ...], example: Any
) -> dict[str, tuple[float | str, ...]] | None:
    """One row of each input, flat."""
    names = [each.name for each in inputs]
    if not isinstance(example, Mapping) and len(example) == sum(each.words for each in inputs):
        example = _from_record(inputs, np.asarray(example, np.float32))
        if example is None:
            return None
    if not isinstance(example, Mapping) or set(example) != set(names):
        got = sorted(example) if isinstance(example, Mapping) else type(example).__name__
        raise ModelLoadError(f"example: expected a row of each of the inputs {names}, got {got}")
    row = {}
    for each in inputs:
        values = np.asarray(example[each.name], object if each.dtype == "string" else None).reshape(-1)
        try:
            each.pack(values.reshape(1, -1))
        except InputError as error:
            raise ModelLoadError(f"example: {error}") from None
        row[each.name] = tuple(values.tolist())
    return row


def _from_record(inputs: tuple[Input, ...], record: NDArray[np.float32]) -> dict[str, tuple[Any, ...]] | None:
    """The values that a caller would send for a record; None where a rule hides them."""
    row = {}
    for each, words in zip(
        inputs, np.split(record, np.cumsum([each.words for each in inputs])[:-1]), strict=True
    ):
        numbers: NDArray[Any]
        field, values = each.fields[0], words[: each.width]
        if field.rules or len(words) != each.words or each.words % each.width:
            return None
        if field.size is not None:
            numbers = values.view(np.int32)
        else:
            numbers = values.astype(np.int64) if each.dtype.startswith(("bool", "int")) else values
        if each.vocabulary is not None and any(number >= len(each.vocabulary) for number in numbers):
            return None
        known = each.vocabulary
        row[each.name] = tuple(numbers.tolist() if known is None else (known[int(n)] for n in numbers))
    return row
