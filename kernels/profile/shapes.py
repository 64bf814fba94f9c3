# SPDX-License-Identifier: Apache-2.0
"""MLPs with random weights: for given widths (--dims), for a given program, and the same program in other widths."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fused_mlp.kernels.profile.errors import ProfileError
from fused_mlp.kernels.work import BYTES_PER_FLOAT
from fused_mlp.models import Activation, LayerSpec, Mlp, MlpSpec
from fused_mlp.models.chain import MAX_LAYERS
from fused_mlp.models.precision import to_precision
from fused_mlp.models.spec import INPUT

_COPIES = 4  # of the weights: ours, the module's, those that the fused kernel and torch.compile pack


def random_mlp(widths: Sequence[int], activation: Activation = "relu", gated: bool = False) -> Mlp:
    """widths: input, hidden ..., output. `gated` makes every hidden layer a gated one (GeGLU, SwiGLU)."""
    if len(widths) - 1 > MAX_LAYERS:
        raise ProfileError(f"expected at most {MAX_LAYERS} layers, got {len(widths) - 1}")
    spec = spec_of(widths, activation, gated)
    check_size(spec)
    return with_random_weights(spec)


def spec_of(widths: Sequence[int], activation: Activation, gated: bool = False) -> MlpSpec:
    hidden = [LayerSpec(out_features=width, activation=activation, gated=gated) for width in widths[1:-1]]
    return MlpSpec.of_layers(widths[0], (*hidden, LayerSpec(out_features=widths[-1])))


def check_size(spec: MlpSpec) -> None:
    """Raises ProfileError for weights that do not fit into memory."""
    size = BYTES_PER_FLOAT * spec.parameters
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size * _COPIES > memory:
        raise ProfileError(
            f"expected weights of at most {memory / _COPIES / 1e9:.1f} GB, {_COPIES} copies of which fit into this "
            f"machine's memory; got {size / 1e9:,.1f} GB"
        )


def with_random_weights(spec: MlpSpec) -> Mlp:
    """The same weights every time, scaled so that values keep their magnitude from step to step."""
    generator = np.random.default_rng(1)
    tensors = {}
    for name, shape in spec.shapes():
        values = generator.standard_normal(shape, np.float32)
        if len(shape) == 2:
            values *= np.float32(shape[1] ** -0.5)
        elif name.endswith(".weight"):  # of a norm or an affine: near 1
            values = 1 + values * np.float32(0.1)
        tensors[name] = values
    return Mlp(spec, tensors)


def reduced_alike(twin: Mlp, mlp: Mlp) -> Mlp:
    """`twin` with the matrices of the same steps in fewer bits as `mlp` has."""
    of_products = [step for step in mlp.spec.steps if step.op in ("linear", "gated")]
    wide = (step.name for step in of_products if mlp.reduced and f"{step.prefix}.weight" not in mlp.reduced)
    return to_precision(twin, mlp.precision, frozenset(wide))


def narrow_twin(spec: MlpSpec, width: int = 16) -> Mlp:
    """The same steps, so narrow that their arithmetic is nothing: what is left of the time is the cost of calling
    them. Not narrower: products with one column or row are computed in ways of their own."""
    return with_random_weights(resized(spec, lambda features: min(width, features)))


def resized(spec: MlpSpec, width: Callable[[int], int]) -> MlpSpec:
    """The same steps in float32, with width(n) features in every value that had n. Values side by side are cut to that
    many, which costs a view; slices begin at 0."""
    names = {INPUT, *(step.name for step in spec.steps)}
    steps: list[Any] = []
    for step in spec.steps:
        features = width(spec.widths_by_name[step.name])
        match step.op:
            case "linear" | "gated":
                steps.append(step.model_copy(update={"out_features": features}))
            case "slice":
                steps.append(step.model_copy(update={"start": 0, "stop": features}))
            case "concat":
                whole = next(name for n in range(len(names) + 1) if (name := f"whole{n}") not in names)
                names.add(whole)
                cut = {"op": "slice", "name": step.name, "input": whole, "start": 0, "stop": features}
                steps += [step.model_copy(update={"name": whole}), cut]
            case _:
                steps.append(step)
    outputs = [output.model_copy(update={"squeeze": False}) for output in spec.outputs]
    return MlpSpec.model_validate(
        {"in_features": width(spec.in_features), "steps": steps, "outputs": outputs}
    )
