"""What an MLP is, as data: widths, activations, gates. Owns validation of the shape of a model;
knows nothing of tensors, files or kernels."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Activation = Literal[
    "identity",
    "relu",
    "leaky_relu",
    "gelu",
    "gelu_tanh",
    "silu",
    "tanh",
    "sigmoid",
    "elu",
    "softplus",
    "hardswish",
    "relu6",
    "mish",
]
OutputActivation = Activation | Literal["softmax", "log_softmax"]
Dtype = Literal["float32", "float16", "bfloat16"]

Width = Annotated[int, Field(ge=1, le=1 << 20)]
Slope = Annotated[float, Field(allow_inf_nan=False)]
DEFAULT_SLOPE = 0.01  # of leaky_relu, as in PyTorch


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _check_slope(field: str, slope: float, activation: OutputActivation) -> None:
    """Refuse a slope that no activation uses: each model has one spelling only."""
    if activation != "leaky_relu" and slope != DEFAULT_SLOPE:
        raise ValueError(f"{field} {slope} without leaky_relu: {activation} has no slope, leave it out")


class LayerSpec(_Frozen):
    """One layer: activation(x W^T + b), or, when gated, activation(x G^T + g) * (x W^T + b)."""

    out_features: Width
    bias: bool = True
    activation: Activation = "identity"
    negative_slope: Slope = DEFAULT_SLOPE  # leaky_relu only
    gated: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_slope("negative_slope", self.negative_slope, self.activation)
        return self


class MlpSpec(_Frozen):
    """A whole MLP. `output_activation` runs after the last layer; an ungated last layer therefore
    has no activation of its own, so that there is one way to write each model down."""

    in_features: Width
    layers: Annotated[tuple[LayerSpec, ...], Field(min_length=1, max_length=256)]
    output_activation: OutputActivation = "identity"
    output_negative_slope: Slope = DEFAULT_SLOPE  # leaky_relu only
    dtype: Dtype = "float32"
    labels: tuple[str, ...] | None = None
    description: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        last = self.layers[-1]
        if not last.gated and last.activation != "identity":
            raise ValueError(
                f"the last layer has activation {last.activation!r}: write it as output_activation"
            )
        _check_slope("output_negative_slope", self.output_negative_slope, self.output_activation)
        if self.labels is not None and len(self.labels) != last.out_features:
            raise ValueError(
                f"{len(self.labels)} labels for {last.out_features} outputs: give one per output"
            )
        return self

    @property
    def out_features(self) -> int:
        return self.layers[-1].out_features

    @property
    def widths(self) -> tuple[int, ...]:
        """Input width, then the output width of each layer."""
        return (self.in_features, *(layer.out_features for layer in self.layers))

    @property
    def parameters(self) -> int:
        """How many weights and biases the model has."""
        count = 0
        for fan_in, layer in zip(self.widths, self.layers, strict=False):
            count += (fan_in + layer.bias) * layer.out_features * (2 if layer.gated else 1)
        return count

    def summary(self) -> str:
        """`784-512-256-10 relu`: widths, then the distinct activations in order of appearance."""
        names: list[str] = []
        for layer in self.layers:
            name = f"gated {layer.activation}" if layer.gated else layer.activation
            if name not in names and name != "identity":
                names.append(name)
        if self.output_activation != "identity":
            names.append(self.output_activation)
        return " ".join(["-".join(map(str, self.widths)), "+".join(names)]).strip()
