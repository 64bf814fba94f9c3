"""The models that the ahead-of-time check compiles kernels for, and those whose launches it counts. Data only;
imports no triton."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Literal, TypeVar, get_args

from fused_mlp.models import Activation, Dtype, LayerSpec, MlpSpec
from fused_mlp.models.spec import OutputActivation

ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
Item = TypeVar("Item")
SOFTMAXES: tuple[Literal["softmax", "log_softmax"], ...] = ("softmax", "log_softmax")


class Tour:
    """Deals out activations in turn, so that the few kernels of an architecture between them have each one
    plain, as a gate and after the last layer; `start` shifts it from architecture to architecture."""

    def __init__(self, start: int) -> None:
        self.plain = _from(ACTIVATIONS, start)
        self.gate = _from(ACTIVATIONS, start)
        self.output: Iterator[OutputActivation] = _from((*SOFTMAXES, *ACTIVATIONS), start)
        self.softmax = _from(SOFTMAXES, start)


def plain_whole(width: int, dtype: Dtype, tour: Tour) -> MlpSpec:
    """A wide input, and a last layer whose rows one tile holds."""
    layers = [LayerSpec(out_features=width, activation=next(tour.plain)) for _ in range(1 + _between(width))]
    return MlpSpec(
        in_features=784,
        layers=(*layers, LayerSpec(out_features=10)),
        output_activation=next(tour.output),
        dtype=dtype,
    )


def gated_whole(width: int, dtype: Dtype, tour: Tour) -> MlpSpec:
    """The heaviest: two accumulators in every layer, exact GELU where most values are live, a softmax over more
    columns than one tile holds; odd widths leave masks and scalar loads in place."""
    between = (LayerSpec(out_features=width - 1, activation="gelu", gated=True),) * _between(width)
    first = LayerSpec(out_features=width - 1, activation=next(tour.gate), gated=True)
    last = LayerSpec(out_features=199, activation=next(tour.gate), gated=True)
    return MlpSpec(
        in_features=123,
        layers=(first, *between, last),
        output_activation=next(tour.softmax),
        dtype=dtype,
    )


def _between(width: int) -> int:
    """Layers between first and last. (Once more is the same code again, and in the wide ones a third of the
    time to compile.)"""
    return 1 if width > 64 else 2


def plain_layers(dtype: Dtype, tour: Tour) -> MlpSpec:
    """A hidden layer, and a last one wider than a tile."""
    output = next(name for name in tour.output if name not in SOFTMAXES)
    return MlpSpec(
        in_features=1024,
        layers=(
            LayerSpec(out_features=1024, activation=next(tour.plain)),
            LayerSpec(out_features=200),
        ),
        output_activation=output,
        dtype=dtype,
    )


def gated_layers(dtype: Dtype, tour: Tour, outputs: int) -> MlpSpec:
    """Both gated, at odd widths: exact GELU in the hidden one, any in the last; then a softmax."""
    return MlpSpec(
        in_features=1023,
        layers=(
            LayerSpec(out_features=1023, activation="gelu", gated=True),
            LayerSpec(out_features=outputs, activation=next(tour.gate), gated=True),
        ),
        output_activation=next(tour.softmax),
        dtype=dtype,
    )


def _from(items: tuple[Item, ...], start: int) -> Iterator[Item]:
    return islice(cycle(items), start % len(items), None)


def _model(
    widths: tuple[int, ...], activation: str, output: str, dtype: Dtype, gated: bool = False
) -> MlpSpec:
    layers = [{"out_features": width, "activation": activation, "gated": gated} for width in widths[1:-1]]
    layers.append({"out_features": widths[-1]})
    return MlpSpec.model_validate(
        {
            "in_features": widths[0],
            "layers": layers,
            "output_activation": output,
            "dtype": dtype,
        }
    )


# Typical models, for the table of launches.
EXAMPLES = (
    _model((64, 128, 128, 10), "relu", "softmax", "float32"),
    _model((784, 512, 256, 10), "relu", "softmax", "float32"),
    _model((32, 64, 64, 64, 64, 64, 64, 64, 3), "silu", "identity", "float16"),
    _model((768, 3072, 768), "gelu", "identity", "bfloat16"),
    _model((768, 3072, 768), "gelu", "identity", "bfloat16", gated=True),
    _model((4096, 11008, 4096), "silu", "identity", "bfloat16", gated=True),
)
