# SPDX-License-Identifier: Apache-2.0
"""A chain of layers: the simplest program, and how files of format 1 and checkpoints describe a model. Owns the way
from layers to steps and back; knows nothing of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from fused_mlp.models.program.formula import parse

if TYPE_CHECKING:
    from fused_mlp.models.program.spec import Output, Step

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
DEFAULT_SLOPE = 0.01  # of leaky_relu, as in PyTorch
MAX_LAYERS = 256
_KEYS = ("layers", "output_activation", "output_negative_slope")


def _check_slope(field: str, slope: float, activation: str) -> None:
    """Refuse a slope that no activation uses: each model has one spelling only."""
    if activation != "leaky_relu" and slope != DEFAULT_SLOPE:
        raise ValueError(f"{field} {slope} without leaky_relu: {activation} has no slope, leave it out")


class LayerSpec(BaseModel):
    """One layer: activation(x W^T + b), or, when gated, activation(x G^T + g) * (x W^T + b)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    out_features: Annotated[int, Field(ge=1, le=1 << 20)]
    bias: bool = True
    activation: Activation = "identity"
    negative_slope: FiniteFloat = DEFAULT_SLOPE  # leaky_relu only
    gated: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_slope("negative_slope", self.negative_slope, self.activation)
        return self


class Chain(NamedTuple):
    """`output_activation` runs after the last layer; an ungated last layer has no activation of its own."""

    layers: tuple[LayerSpec, ...]
    output_activation: OutputActivation = "identity"
    output_negative_slope: float = DEFAULT_SLOPE


def steps_of(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of an MlpSpec with `layers` and what belongs to them written as steps: layers.0, layers.0.act, ..."""
    if "steps" in given:
        raise ValueError("layers: expected layers or steps, got both")
    if not isinstance(given["layers"], (list, tuple)) or not 1 <= len(given["layers"]) <= MAX_LAYERS:
        raise ValueError(f"layers: expected a list of at least 1 and at most {MAX_LAYERS}")
    layers = [
        each if isinstance(each, LayerSpec) else LayerSpec.model_validate(each) for each in given["layers"]
    ]
    output = given.get("output_activation", "identity")
    slope = given.get("output_negative_slope", DEFAULT_SLOPE)
    if output not in (*get_args(Activation), "softmax", "log_softmax"):
        raise ValueError(f"output_activation: there is no activation {output!r}")
    if not layers[-1].gated and layers[-1].activation != "identity":
        raise ValueError(
            f"the last layer has activation {layers[-1].activation!r}: write it as output_activation"
        )
    _check_slope("output_negative_slope", slope, output)
    steps: list[dict[str, Any]] = []
    value = "input"

    def add(op: str, name: str, **fields: Any) -> None:
        nonlocal value
        steps.append({"op": op, "name": name, "input": value, **fields})
        value = name

    for index, layer in enumerate(layers):
        name, function = f"layers.{index}", function_text(layer.activation, layer.negative_slope)
        matrix = {"out_features": layer.out_features, "bias": layer.bias}
        if layer.gated:
            add("gated", name, **matrix, function=function)
        else:
            add("linear", name, **matrix)
            if function != "x":
                add("elementwise", f"{name}.act", function=function)
    if output in ("softmax", "log_softmax"):
        add(output, "output")
    elif output != "identity":
        add("elementwise", "output", function=function_text(output, slope))
    return {**{key: each for key, each in given.items() if key not in _KEYS}, "steps": steps}


def function_text(activation: str, slope: float = DEFAULT_SLOPE) -> str:
    """The formula of an activation of a layer."""
    return parse(f"leaky_relu(x, {slope!r})" if activation == "leaky_relu" else activation).text


def activation_of(function: str) -> tuple[Activation, float] | None:
    """The activation, and its slope, that a formula is; None if it is none of a layer's."""
    formula = parse(function)
    if formula.is_identity:
        return "identity", DEFAULT_SLOPE
    if formula.simple is not None and formula.simple[0] == "leaky_relu":
        return "leaky_relu", formula.simple[1][0]
    return (cast(Activation, formula.text), DEFAULT_SLOPE) if formula.text in get_args(Activation) else None


def chain_of(steps: tuple[Step, ...], outputs: tuple[Output, ...]) -> Chain | None:  # noqa: PLR0911, PLR0912 - one return for each thing that is no chain
    """The program as layers, if it is a plain chain."""
    if len(outputs) != 1 or outputs[0].value != steps[-1].name or outputs[0].name != "output":
        return None
    layers: list[dict[str, Any]] = []
    output: tuple[OutputActivation, float] = ("identity", DEFAULT_SLOPE)
    value, free = "input", False  # `free`: the last layer may still get an activation
    for step in steps:
        if step.sources != (value,):
            return None
        value = step.name
        if output[0] != "identity":  # it was not the last one
            return None
        if step.op in ("linear", "gated"):
            if step.prefix != step.name:
                return None
            found = activation_of(step.function) if step.op == "gated" else ("identity", DEFAULT_SLOPE)
            if found is None:
                return None
            layers.append(
                {
                    "out_features": step.out_features,
                    "bias": step.bias,
                    "activation": found[0],
                    "negative_slope": found[1],
                    "gated": step.op == "gated",
                }
            )
            free = True
        elif not layers or not free:
            return None
        elif step.op in ("softmax", "log_softmax"):
            output = step.op, DEFAULT_SLOPE
        elif step.op == "elementwise" and (found := activation_of(step.function)) is not None:
            free = False
            if step is steps[-1] or layers[-1]["gated"]:
                output = found
            else:
                layers[-1].update(activation=found[0], negative_slope=found[1])
        else:
            return None
    return Chain(tuple(LayerSpec.model_validate(layer) for layer in layers), *output) if layers else None
