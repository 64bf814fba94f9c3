# SPDX-License-Identifier: Apache-2.0
"""MLPs with random weights: for given widths (--dims), for a given program, and the same program in other widths."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fused_mlp.kernels.profile.results import ProfileError
from fused_mlp.kernels.work import BYTES_PER_FLOAT
from fused_mlp.models import Activation, LayerSpec, Mlp, MlpSpec
from fused_mlp.models.program.chain import MAX_LAYERS
from fused_mlp.models.program.inputs import Input, spread_ids
from fused_mlp.models.program.spec import INPUT, Gated, Linear, Slice, Step
from fused_mlp.models.program.steps import Bag, Bucketize, Dot, Embedding, Pick, Reduce, Repeat
from fused_mlp.models.weights.precision import to_precision

_FEW_IDS = 1000  # of a table that stays in the cache
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


def random_rows(spec: MlpSpec, rows: int) -> Tensor:
    """(rows, in_features): floats, and ids over whole tables. The same every time."""
    x = np.random.default_rng(2).standard_normal((rows, spec.in_features), np.float32)
    spread_ids(spec.record, x)
    return torch.from_numpy(x)


def resized(spec: MlpSpec, width: Callable[[int], int]) -> MlpSpec:
    """The same steps in float32, with width(n) features in every value that had n. What a step makes wider is cut,
    which costs a view; slices begin at 0. A record stays as it is, but its tables are small."""
    names = {INPUT, *(step.name for step in spec.steps)}
    few = max([_FEW_IDS, *(step.count + 1 for step in spec.steps if isinstance(step, Bucketize))])
    widths = {INPUT: spec.in_features if spec.inputs is not None else width(spec.in_features)}
    steps: list[Any] = []
    for step in spec.steps:
        features = widths[step.name] = width(spec.widths_by_name[step.name])
        sources = tuple(widths[name] for name in step.sources)
        if isinstance(step, Pick):  # of equal parts, as many as before
            parts = _unused(names)
            steps.append(Repeat(name=parts, input=step.inputs[0], groups=1, times=step.groups))
            step = step.model_copy(update={"inputs": (parts, step.inputs[1])})  # noqa: PLW2901
            sources = sources[0] * step.groups, 1
        made = _resized(step, features, sources, in_record=spec.inputs is not None)
        if isinstance(step, (Embedding, Bag)):
            made = made.model_copy(update={"features": width(step.features), "size": min(step.size, few)})
        if made.width(sources) != features:
            whole = _unused(names)
            shared = {"weights": step.prefix} if isinstance(step, (Embedding, Bag)) else {}
            steps.append(made.model_copy(update={"name": whole, **shared}))
            made = Slice(name=step.name, input=whole, start=0, stop=features)
        steps.append(made)
    inputs = None if spec.inputs is None else [_with_few_ids(each, few) for each in spec.inputs]
    outputs = [output.model_copy(update={"squeeze": False}) for output in spec.outputs]
    return MlpSpec.model_validate(
        {"in_features": widths[INPUT], "inputs": inputs, "steps": steps, "outputs": outputs}
    )


def _unused(names: set[str]) -> str:
    name = next(name for n in range(len(names) + 1) if (name := f"whole{n}") not in names)
    names.add(name)
    return name


def _resized(step: Step, features: int, sources: tuple[int, ...], *, in_record: bool) -> Any:
    """The step with sources of these widths, which makes at least so many features."""
    options: dict[str, Any] = {}
    match step:
        case Linear() | Gated():
            options = {"out_features": features}
        case Slice():
            start = step.start if in_record and step.input == INPUT else 0
            options = {"start": start, "stop": start + features}
        case Dot():
            options = {"groups": sources[0], "itself": True}
        case Reduce():
            options = {"groups": sources[0] if step.over == "features" else 1}
        case Repeat():
            options = {"groups": 1}
    return step.model_copy(update=options)


def _with_few_ids(each: Input, few: int) -> Input:
    fields = tuple(
        field if field.size is None else field.model_copy(update={"size": min(field.size, few)})
        for field in each.fields
    )
    return each.model_copy(update={"fields": fields})
