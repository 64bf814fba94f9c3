"""MLPs with random weights for given widths (--dims), and the arithmetic and bytes of a shape."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from fused_mlp.kernels.profile.errors import ProfileError
from fused_mlp.models import Activation, LayerSpec, Mlp, MlpSpec
from fused_mlp.models.dtypes import Array
from fused_mlp.models.spec import Gated, Linear, Slice, Step

_MOST_LAYERS = 256  # of an MlpSpec
_COPIES = 4  # of the weights: ours, the module's, those that the fused kernel and torch.compile pack
BYTES_PER_FLOAT = 4  # CPU kernels compute in float32, whatever the model is stored in


def check_shape(widths: Sequence[int], gated: bool) -> None:
    """Raises ProfileError for a shape that no model may have or that does not fit into memory."""
    if len(widths) - 1 > _MOST_LAYERS:
        raise ProfileError(f"expected at most {_MOST_LAYERS} layers, got {len(widths) - 1}")
    products = [a * b for a, b in pairwise(widths)]
    size = BYTES_PER_FLOAT * (sum(products) + gated * sum(products[:-1]))
    if size * _COPIES > _memory():
        raise ProfileError(
            f"expected weights of at most {_memory() / _COPIES / 1e9:.1f} GB, {_COPIES} copies of which fit into this "
            f"machine's memory; got {size / 1e9:,.1f} GB"
        )


def random_mlp(widths: Sequence[int], activation: Activation = "relu", gated: bool = False) -> Mlp:
    """widths: input, hidden ..., output. `gated` makes every hidden layer a gated one (GeGLU, SwiGLU)."""
    check_shape(widths, gated)
    return with_random_weights(spec_of(widths, activation, gated))


def spec_of(widths: Sequence[int], activation: Activation, gated: bool = False) -> MlpSpec:
    hidden = [LayerSpec(out_features=width, activation=activation, gated=gated) for width in widths[1:-1]]
    return MlpSpec.of_layers(widths[0], (*hidden, LayerSpec(out_features=widths[-1])))


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def with_random_weights(spec: MlpSpec) -> Mlp:
    """The same weights every time, scaled so that activations keep their magnitude from layer to layer. Norms keep
    what they are given: their weights are one."""
    generator = torch.Generator().manual_seed(1)
    tensors: dict[str, Array] = {}
    for step in spec.steps:
        shapes = step.shapes(spec.source_widths(step))
        if f"{step.prefix}.{next(iter(shapes), '')}" in tensors:
            continue  # of a module that is called again
        # Matrices before vectors: chains have always had these weights.
        for name, shape in sorted(shapes.items(), key=lambda each: -len(each[1])):
            values = torch.randn(shape, generator=generator)
            if len(shape) > 1:
                values *= float(shape[1]) ** -0.5
            elif name == "weight":
                values = torch.ones(shape)
            tensors[f"{step.prefix}.{name}"] = values.numpy()
    return Mlp(spec, tensors)


def narrow_twin(spec: MlpSpec, width: int = 16) -> Mlp:
    """The same steps, so narrow that their arithmetic is nothing: what is left of the time is the cost of calling
    them. Not narrower: products with one column or row are computed in ways of their own."""
    steps: list[Step] = []
    for step in spec.steps:
        if isinstance(step, (Linear, Gated)):
            steps.append(step.model_copy(update={"out_features": min(width, step.out_features)}))
        elif isinstance(step, Slice):
            # Its features may not be there any more; a product is at least as much to call.
            part = min(width, step.stop - step.start)
            steps.append(Linear(name=step.name, input=step.input, out_features=part))
        else:
            steps.append(step)
    twin = {"in_features": min(width, spec.in_features), "steps": steps, "input_shape": None, "labels": None}
    try:
        narrow = MlpSpec.model_validate({**spec.model_dump(), **twin, "dtype": "float32"})
    except ValueError:  # a concat of narrow values need not be as narrow as what it is combined with
        narrow = spec
    return with_random_weights(narrow)


@dataclass(frozen=True)
class Work:
    """The least work of one forward pass, whatever the implementation."""

    flops: int
    weight_bytes: int
    input_bytes: int
    output_bytes: int

    @property
    def bytes_moved(self) -> int:
        return self.weight_bytes + self.input_bytes + self.output_bytes


def work_of(spec: MlpSpec, batch: int) -> Work:
    """Of the products: norms, functions and additions are nothing beside them."""
    products = sum(
        spec.source_widths(step)[0] * step.out_features * (2 if isinstance(step, Gated) else 1)
        for step in spec.steps
        if isinstance(step, (Linear, Gated))
    )
    return Work(
        flops=2 * products * batch,
        weight_bytes=spec.parameters * BYTES_PER_FLOAT,
        input_bytes=batch * spec.in_features * BYTES_PER_FLOAT,
        output_bytes=batch * spec.out_features * BYTES_PER_FLOAT,
    )
