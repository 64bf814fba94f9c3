"""What an MLP is, as data: a program of steps, each of which makes one value from earlier ones, row by row. Owns
validation of names, widths and outputs; knows nothing of tensors, files or kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from fused_mlp.models.chain import (
    DEFAULT_SLOPE,
    Activation,
    Chain,
    LayerSpec,
    OutputActivation,
    chain_of,
    steps_of,
)
from fused_mlp.models.formula import Formula, parse

Dtype = Literal["float32", "float16", "bfloat16"]
Combination = Literal["add", "subtract", "multiply", "divide", "maximum", "minimum"]

MAX_STEPS = 4096
MAX_WIDTH = 1 << 20
# Concats of concats grow without any weights: a small file must not ask for gigabytes per row.
MAX_FEATURES = 1 << 24  # of all values together
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
# A step's name is that of the value it makes and the beginning of its tensors' names: `blocks.3.fc1`.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./:-]{0,199}$")]
# Everything else is strict; a list is as good as a tuple, in JSON and in Python. The first error of a list is enough.
_LIST = Field(strict=False, fail_fast=True)
Eps = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

INPUT = "input"  # the name of the program's input


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class _Step(Frozen):
    """One step. `name` is the value that it makes."""

    name: Name
    tensors: ClassVar[tuple[str, ...]] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """The values that it reads."""
        raise NotImplementedError

    def width(self, sources: tuple[int, ...]) -> int:
        """Of its value, given those of its sources; ValueError when they do not fit."""
        return sources[0]

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Its tensors: the last part of their names, and their shapes."""
        return {}

    @property
    def prefix(self) -> str:
        """What its tensors' names begin with."""
        return self.name

    # `op` has a default, so that steps are made without it, but is always written down.
    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"op": self.op, **handler(self)}  # type: ignore[attr-defined]


class _Unary(_Step):
    input: Name

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.input,)


class _Weighted(_Unary):
    """A step with a matrix. Steps that name the same `weights` share one (a module that is called twice)."""

    out_features: Width
    bias: bool = True
    weights: Name | None = None

    @property
    def prefix(self) -> str:
        return self.weights or self.name

    def width(self, sources: tuple[int, ...]) -> int:
        return self.out_features


class Linear(_Weighted):
    """input W^T + b. weight: (out_features, in), bias: (out_features,)."""

    op: Literal["linear"] = "linear"

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return _matrix("", self.out_features, sources[0], self.bias)


class _WithFunction(_Unary):
    function: str

    @field_validator("function")
    @classmethod
    def _canonical(cls, text: str) -> str:
        return parse(text).text

    @property
    def formula(self) -> Formula:
        return parse(self.function)


class Gated(_Weighted, _WithFunction):
    """function(input G^T + g) * (input W^T + b): GLU, GeGLU, SwiGLU, ReGLU; bilinear with the function `x`."""

    op: Literal["gated"] = "gated"

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {
            **_matrix("", self.out_features, sources[0], self.bias),
            **_matrix("gate_", self.out_features, sources[0], self.bias),
        }


class Elementwise(_WithFunction):
    """function(input), value by value."""

    op: Literal["elementwise"] = "elementwise"


class Norm(_Unary):
    """layer: (x - mean) / sqrt(variance + eps); rms: x / sqrt(mean of squares + eps); l2: x / max(length, eps).
    Then * weight + bias, where it has them."""

    op: Literal["norm"] = "norm"
    kind: Literal["layer", "rms", "l2"]
    eps: Eps = 1e-5
    weight: bool = True
    bias: bool = True

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return _vectors(sources[0], self.weight, self.bias)


class Affine(_Unary):
    """input * weight + bias, one of each per feature: a batch norm that no linear layer is beside."""

    op: Literal["affine"] = "affine"
    weight: bool = True
    bias: bool = True

    def shapes(self, sources: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return _vectors(sources[0], self.weight, self.bias)


class Softmax(_Unary):
    """softmax, or its logarithm, over all features of the row."""

    op: Literal["softmax", "log_softmax"] = "softmax"


class Combine(_Step):
    """Two values of the same width, feature by feature."""

    op: Combination
    inputs: Annotated[tuple[Name, Name], Field(strict=False)]

    @property
    def sources(self) -> tuple[str, ...]:
        return self.inputs

    def width(self, sources: tuple[int, ...]) -> int:
        if sources[0] != sources[1]:
            raise ValueError(f"expected two values of the same width, got {sources[0]} and {sources[1]}")
        return sources[0]


class Concat(_Step):
    """Values side by side."""

    op: Literal["concat"] = "concat"
    inputs: Annotated[tuple[Name, ...], Field(min_length=2, max_length=1024), _LIST]

    @property
    def sources(self) -> tuple[str, ...]:
        return self.inputs

    def width(self, sources: tuple[int, ...]) -> int:
        return sum(sources)


class Slice(_Unary):
    """The features [start, stop) of a value."""

    op: Literal["slice"] = "slice"
    start: Annotated[int, Field(ge=0)]
    stop: Annotated[int, Field(ge=1)]

    def width(self, sources: tuple[int, ...]) -> int:
        if not self.start < self.stop <= sources[0]:
            raise ValueError(f"[{self.start}, {self.stop}) is no part of {sources[0]} features")
        return self.stop - self.start


Step = Annotated[
    Linear | Gated | Elementwise | Norm | Affine | Softmax | Combine | Concat | Slice,
    Field(discriminator="op"),
]


class Output(Frozen):
    """A head: a value under the name that callers know. `squeeze`: the model itself answers (rows,), not (rows, 1)."""

    name: Name = "output"
    value: Name
    squeeze: bool = False


class MlpSpec(Frozen):
    """A whole model. Every step is named, reads values that exist already, and is needed by some output.
    A chain of layers may also be given as `layers` and `output_activation`, as in files of format 1."""

    in_features: Width
    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=MAX_STEPS), _LIST]
    outputs: Annotated[tuple[Output, ...], Field(min_length=1, max_length=64), _LIST]
    input_shape: Annotated[tuple[Width, ...], Field(min_length=1, max_length=8), _LIST] | None = None
    dtype: Dtype = "float32"
    labels: Annotated[tuple[str, ...], _LIST] | None = None  # of the first output
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
        shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        for step in self.steps:
            of_step = step.shapes(self.source_widths(step))
            if of_step and shapes.setdefault(step.prefix, of_step) != of_step:
                raise ValueError(
                    f"step {step.name!r}: other shapes than the step that it shares {step.prefix!r} with"
                )
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

    def source_widths(self, step: _Step) -> tuple[int, ...]:
        return tuple(self.widths_by_name[source] for source in step.sources)

    @property
    def output_widths(self) -> tuple[int, ...]:
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
        seen = set()
        for step in self.steps:
            if step.prefix not in seen:
                for name, shape in step.shapes(self.source_widths(step)).items():
                    seen.add(step.prefix)
                    yield f"{step.prefix}.{name}", shape

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
        products = (step for step in self.steps if isinstance(step, _Weighted))
        return (self.in_features, *(step.out_features for step in products))

    def summary(self) -> str:
        """One readable line: `784-512-256-10 relu`, `192 -> 3 x [ln, 384 gelu, 192, +] -> ln -> 10`."""
        return self._summary

    @cached_property
    def _summary(self) -> str:  # read at every scrape of /metrics
        from fused_mlp.models.summary import summarize  # noqa: PLC0415 - needs this module

        return summarize(self)


def _matrix(half: str, out_features: int, in_features: int, bias: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{half}weight": (out_features, in_features)}
    if bias:
        shapes[f"{half}bias"] = (out_features,)
    return shapes


def _vectors(features: int, weight: bool, bias: bool) -> dict[str, tuple[int, ...]]:
    return {name: (features,) for name, there in (("weight", weight), ("bias", bias)) if there}


__all__ = [
    "DEFAULT_SLOPE",
    "INPUT",
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
