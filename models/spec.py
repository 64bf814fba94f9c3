# SPDX-License-Identifier: Apache-2.0
"""What an MLP is, as data: a program of steps, each of which makes one value from earlier ones, row by row. Owns
validation of names, widths and outputs; knows nothing of tensors, files or kernels."""

# Annotations are no texts here: pydantic would evaluate each of them, at the start of every server.
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fused_mlp.models.chain import (
    DEFAULT_SLOPE,
    Activation,
    Chain,
    LayerSpec,
    OutputActivation,
    chain_of,
    steps_of,
)
from fused_mlp.models.steps import (
    LIST,
    MAX_WIDTH,
    Affine,
    AnyStep,
    Combination,
    Combine,
    Concat,
    Elementwise,
    Frozen,
    Gated,
    Linear,
    Name,
    Norm,
    Slice,
    Softmax,
    Step,
    Unary,
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
    """What a model computes, without its weights: a program of named steps.

    Every step reads values that exist already, and is needed by some output. A chain of layers may also be given as
    `layers` and `output_activation`. Most people never write one: the functions `from_...` do.
    """

    in_features: Width
    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=MAX_STEPS), LIST]
    outputs: Annotated[tuple[Output, ...], Field(min_length=1, max_length=64), LIST]
    input_shape: Annotated[tuple[Width, ...], Field(min_length=1, max_length=8), LIST] | None = None
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

    def source_widths(self, step: AnyStep) -> tuple[int, ...]:
        """The widths of what a step reads."""
        return tuple(self.widths_by_name[source] for source in step.sources)

    @property
    def output_widths(self) -> tuple[int, ...]:
        """The width of each output."""
        return tuple(self.widths_by_name[output.value] for output in self.outputs)

    @property
    def out_features(self) -> int:
        """Of all outputs together: kernels write them side by side."""
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
            of_step = step.shapes(self.source_widths(step)) if isinstance(step, Unary) else {}
            if of_step and shapes.setdefault(step.prefix, of_step) != of_step:
                raise ValueError(
                    f"step {step.name!r}: other shapes than the step that it shares {step.prefix!r} with"
                )
        return shapes

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
        """Of a plain chain."""
        return "identity" if self.chain is None else self.chain.output_activation

    @property
    def output_negative_slope(self) -> float:
        """Of a plain chain."""
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
        from fused_mlp.models.summary import summarize  # noqa: PLC0415 - needs this module

        return summarize(self)


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
    "Concat",
    "Dtype",
    "Elementwise",
    "Gated",
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
