# SPDX-License-Identifier: Apache-2.0
"""An MLP as data: a program of steps, each of which makes one value from earlier ones, row by row. Owns
validation of names, widths and outputs; knows nothing of tensors, files or kernels."""

# Annotations are no texts here: pydantic would evaluate each of them, at the start of every server.
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fused_mlp.models.program.chain import (
    DEFAULT_SLOPE,
    Activation,
    Chain,
    LayerSpec,
    OutputActivation,
    chain_of,
    steps_of,
)
from fused_mlp.models.program.inputs import MAX_INPUTS, Input, RecordPart, pack_rows, record_of
from fused_mlp.models.program.steps import (
    LIST,
    MAX_WIDTH,
    Affine,
    AnyStep,
    Argmax,
    Bag,
    Bucketize,
    Combination,
    Combine,
    Compare,
    Comparison,
    Concat,
    Elementwise,
    Embedding,
    Frozen,
    Gated,
    Kind,
    Linear,
    Name,
    Norm,
    Pick,
    Slice,
    Softmax,
    Step,
    Weighted,
    Width,
)

Dtype = Literal["float32", "float16", "bfloat16"]

MAX_STEPS = 4096
# Concats of concats grow without any weights: a small file must not ask for gigabytes per row.
MAX_FEATURES = 1 << 24  # of all values together

INPUT = "input"  # the name of the program's input


class Output(Frozen):
    """A head: a value under the name that callers know. `squeeze`: the model itself answers (rows,), not (rows, 1)."""

    name: Name = "output"
    value: Name
    squeeze: bool = False


class MlpSpec(Frozen):
    """A model without its weights: a program of named steps.

    Every step reads values that exist already, and is needed by some output. A chain of layers may also be given as
    `layers` and `output_activation`. Most people never write one: the functions `from_...` do.
    """

    in_features: Width
    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=MAX_STEPS), LIST]
    outputs: Annotated[tuple[Output, ...], Field(min_length=1, max_length=64), LIST]
    input_shape: Annotated[tuple[Width, ...], Field(min_length=1, max_length=8), LIST] | None = None
    # The inputs whose values are the words of a row; None: one input of floats, of that name. See inputs.py.
    inputs: Annotated[tuple[Input, ...], Field(min_length=1, max_length=MAX_INPUTS), LIST] | None = None
    dtype: Dtype = "float32"
    labels: Annotated[tuple[str, ...], LIST] | None = None  # of the first output
    description: str = ""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        """Layers become steps; the last step is the output where none is named."""
        if not isinstance(given, dict):
            return given
        if "layers" in given:
            given = steps_of(given)
        steps = given.get("steps")
        if "outputs" not in given and isinstance(steps, (list, tuple)) and steps:
            last = steps[-1]
            name = last.get("name") if isinstance(last, dict) else getattr(last, "name", None)
            given = {**given, "outputs": ({"value": name},)}
        return given

    @classmethod
    def of_layers(
        cls,
        in_features: int,
        layers: Sequence[LayerSpec],
        output_activation: OutputActivation = "identity",
        output_negative_slope: float = DEFAULT_SLOPE,
        dtype: Dtype = "float32",
    ) -> Self:
        """A chain. `output_activation` runs after the last layer, which has none of its own unless it is gated."""
        return cls.model_validate(
            {
                "in_features": in_features,
                "layers": layers,
                "output_activation": output_activation,
                "output_negative_slope": output_negative_slope,
                "dtype": dtype,
            }
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        widths = self.widths_by_name  # checks names, order and widths
        used = {output.value for output in self.outputs}
        for output in self.outputs:
            if output.value not in widths:
                raise ValueError(f"output {output.name!r}: there is no value {output.value!r}")
            if output.squeeze and widths[output.value] != 1:
                raise ValueError(
                    f"output {output.name!r}: only one feature can be squeezed, not {widths[output.value]}"
                )
        if len({output.name for output in self.outputs}) != len(self.outputs):
            raise ValueError("two outputs have the same name")
        if self.out_features > MAX_WIDTH:
            raise ValueError(f"outputs: {self.out_features} features, expected at most {MAX_WIDTH}")
        for step in reversed(self.steps):
            if step.name not in used:
                raise ValueError(f"step {step.name!r}: nothing uses its value, leave it out")
            used.update(step.sources)
        self._check_inputs()
        for output in self.outputs:
            if self.kinds_by_name[output.value] != "float":
                raise ValueError(f"output {output.name!r}: expected floats, got ids; make numbers of them")
        self._check_ids()
        _ = self._shapes  # checks that steps with the same tensors have them in the same shapes
        if self.input_shape is not None and math.prod(self.input_shape) != self.in_features:
            raise ValueError(f"input_shape {self.input_shape} has not {self.in_features} features")
        if self.labels is not None and len(self.labels) != self.output_widths[0]:
            raise ValueError(
                f"{len(self.labels)} labels for {self.output_widths[0]} outputs: give one per output"
            )
        return self

    @cached_property
    def widths_by_name(self) -> dict[str, int]:
        """The width of every value, the input's included, in the order in which they are made."""
        widths = {INPUT: self.in_features}
        total = self.in_features
        for step in self.steps:
            if step.name in widths:
                raise ValueError(f"step {step.name!r}: there is a value of that name already")
            for source in step.sources:
                if source not in widths:
                    raise ValueError(f"step {step.name!r} reads {source!r}, which no step before it makes")
            try:
                width = step.width(tuple(widths[source] for source in step.sources))
            except ValueError as error:
                raise ValueError(f"step {step.name!r}: {error}") from None
            if width > MAX_WIDTH:
                raise ValueError(f"step {step.name!r}: {width} features, expected at most {MAX_WIDTH}")
            widths[step.name] = width
            total += width
            if total > MAX_FEATURES:
                raise ValueError(
                    f"step {step.name!r}: all values up to it have {total} features, expected at most {MAX_FEATURES}"
                )
        return widths

    def _check_inputs(self) -> None:
        if self.inputs is None:
            return
        if self.input_shape is not None:
            raise ValueError("input_shape: inputs have shapes of their own")
        if len({each.name for each in self.inputs}) != len(self.inputs):
            raise ValueError("two inputs have the same name")
        words = sum(each.words for each in self.inputs)
        if words != self.in_features:
            raise ValueError(f"in_features: the inputs have {words} words, got {self.in_features}")

    def pack(self, given: Mapping[str, Any] | Sequence[Any]) -> NDArray[np.float32]:
        """Rows as kernels take them, from the values of all inputs.

        Args:
            given: Arrays by the names of the inputs, or in their order; each of shape (rows, *shape of the input).

        Returns:
            (rows, in_features): floats as they are, ids in the bits of 32-bit integers.

        Raises:
            InputError: An input is missing or unknown, has another dtype, shape or number of rows, or an id that is no
                row of its table.
        """
        return pack_rows(self.inputs or (Input(name=INPUT, shape=(self.in_features,)),), given)

    def _check_ids(self) -> None:
        """No id may be beyond the end of what it chooses from: kernels do not look."""
        # The bound above all ids of a value, and whether some may be absent.
        sizes: dict[str, tuple[int, bool]] = {}
        if self.kinds_by_name.get(INPUT) == "id":
            sizes[INPUT] = self._sizes_in(0, self.in_features)
        for step in self.steps:
            match step:
                case Embedding() | Bag():
                    _check_size(step, step.size, sizes[step.input], absent=isinstance(step, Bag))
                case Pick():
                    _check_size(step, step.groups, sizes[step.inputs[1]])
                case Bucketize():
                    sizes[step.name] = step.count + 1, False
                case Argmax():
                    sizes[step.name] = self.widths_by_name[step.input], False
                case Slice() if step.input == INPUT and self.kinds_by_name[step.name] == "id":
                    sizes[step.name] = self._sizes_in(step.start, step.stop)
                case Slice() | Concat() if self.kinds_by_name[step.name] == "id":
                    known = [sizes[source] for source in step.sources]
                    sizes[step.name] = max(size for size, _ in known), any(absent for _, absent in known)

    def _sizes_in(self, start: int, stop: int) -> tuple[int, bool]:
        """The bound above the ids in these words of a record, and whether some may be absent."""
        parts = [part for part in self.record if part.start < stop and start < part.stop]
        return max(part.field.size or 0 for part in parts), any(part.input.ragged for part in parts)

    @cached_property
    def record(self) -> tuple[RecordPart, ...]:
        """The parts of a row's words, in order; empty for a program with one input of floats."""
        return record_of(self.inputs or ())

    @cached_property
    def kinds_by_name(self) -> dict[str, Kind]:
        """Whether a value holds floats or ids. The input itself, which may hold both, is left out of it if it does."""
        kinds: dict[str, Kind] = {}
        if len(found := {part.field.kind for part in self.record}) <= 1:
            kinds[INPUT] = next(iter(found), "float")
        for step in self.steps:
            of_sources = tuple(self._source_kind(step, source, kinds) for source in step.sources)
            wanted = step.reads or ("float",) * len(of_sources)
            if step.makes is None:
                wanted = of_sources[:1] * len(of_sources)
            for source, kind, expected in zip(step.sources, of_sources, (*wanted, "float"), strict=False):
                if kind != expected:
                    raise ValueError(f"step {step.name!r}: expected {expected}s in {source!r}, got {kind}s")
            kinds[step.name] = step.makes or of_sources[0]
        return kinds

    def _source_kind(self, step: AnyStep, source: str, kinds: dict[str, Kind]) -> Kind:
        if source in kinds:
            return kinds[source]
        if isinstance(step, Slice):
            touched = {
                part.field.kind for part in self.record if part.start < step.stop and step.start < part.stop
            }
            if len(touched) == 1:
                return touched.pop()
        raise ValueError(f"step {step.name!r}: it reads floats and ids at once; slice the input first")

    def source_widths(self, step: AnyStep) -> tuple[int, ...]:
        """The widths of what a step reads."""
        return tuple(self.widths_by_name[source] for source in step.sources)

    @property
    def output_widths(self) -> tuple[int, ...]:
        """The width of each output."""
        return tuple(self.widths_by_name[output.value] for output in self.outputs)

    @property
    def out_features(self) -> int:
        """The features of all outputs together: kernels write them side by side."""
        return sum(self.output_widths)

    def columns(self, output: str) -> slice:
        """Where a kernel writes this output in its row of results."""
        start = 0
        for each, width in zip(self.outputs, self.output_widths, strict=True):
            if each.name == output:
                return slice(start, start + width)
            start += width
        raise KeyError(output)

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The tensors of a model of this spec: name and shape, shared ones once."""
        for prefix, shapes in self._shapes.items():
            for name, shape in shapes.items():
                yield f"{prefix}.{name}", shape

    @cached_property
    def _shapes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        for step in self.steps:
            of_step = step.shapes(self.source_widths(step))
            if of_step and shapes.setdefault(step.prefix, of_step) != of_step:
                raise ValueError(
                    f"step {step.name!r}: other shapes than the step that it shares {step.prefix!r} with"
                )
        return shapes

    @cached_property
    def tables(self) -> frozenset[str]:
        """The names of the tensors whose rows are looked up."""
        lookups = (step for step in self.steps if isinstance(step, (Embedding, Bag)))
        return frozenset(f"{step.prefix}.weight" for step in lookups)

    @cached_property
    def parameters(self) -> int:
        """How many weights and biases the model has."""
        return sum(math.prod(shape) for _, shape in self.shapes())

    @cached_property
    def chain(self) -> Chain | None:
        """The program as a chain of layers; None for every other program."""
        return chain_of(self.steps, self.outputs)

    @property
    def layers(self) -> tuple[LayerSpec, ...] | None:
        """The layers of a plain chain; None for every other program. The last activation is `output_activation`."""
        return None if self.chain is None else self.chain.layers

    @property
    def output_activation(self) -> OutputActivation:
        """The activation after the last layer of a plain chain."""
        return "identity" if self.chain is None else self.chain.output_activation

    @property
    def output_negative_slope(self) -> float:
        """Its slope, if it is leaky_relu."""
        return DEFAULT_SLOPE if self.chain is None else self.chain.output_negative_slope

    @property
    def widths(self) -> tuple[int, ...]:
        """Input width, then those of the matrix products, in order: what a chain is known by."""
        products = (step for step in self.steps if isinstance(step, Weighted))
        return (self.in_features, *(step.out_features for step in products))

    def summary(self) -> str:
        """One readable line: `784-512-256-10 relu`, `192 -> 3 x [ln, 384 gelu, 192, +] -> ln -> 10`."""
        return self._summary

    @cached_property
    def _summary(self) -> str:  # read at every scrape of /metrics
        from fused_mlp.models.program.summary import summarize  # noqa: PLC0415 - needs this module

        return summarize(self)


def _check_size(step: AnyStep, size: int, ids: tuple[int, bool], absent: bool = False) -> None:
    most, may_be_absent = ids
    if most > size:
        raise ValueError(f"step {step.name!r}: ids may be up to {most - 1}, expected at most {size - 1}")
    if may_be_absent and not absent:
        raise ValueError(f"step {step.name!r}: ids of a ragged input may be absent, which only a bag takes")


__all__ = [
    "DEFAULT_SLOPE",
    "INPUT",
    "MAX_FEATURES",
    "MAX_STEPS",
    "MAX_WIDTH",
    "Activation",
    "Affine",
    "Combination",
    "Combine",
    "Compare",
    "Comparison",
    "Concat",
    "Dtype",
    "Elementwise",
    "Embedding",
    "Gated",
    "Input",
    "Kind",
    "LayerSpec",
    "Linear",
    "MlpSpec",
    "Norm",
    "Output",
    "OutputActivation",
    "Slice",
    "Softmax",
    "Step",
]
