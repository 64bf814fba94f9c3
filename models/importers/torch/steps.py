# SPDX-License-Identifier: Apache-2.0
"""The steps in torch, for any dtype and device, and differentiable: what `Step.evaluate` is in numpy. Ids are int64
tensors here; `ids_of` and `as_words` go between them and the words of a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fused_mlp.models.importers.torch.formulas import FUNCTIONS, apply
from fused_mlp.models.program.inputs import Rule
from fused_mlp.models.program.spec import Step
from fused_mlp.models.program.steps import ABSENT

COMPARISONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "less": torch.lt,
    "less_equal": torch.le,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "equal": torch.eq,
    "not_equal": torch.ne,
}


def ids_of(words: Tensor) -> Tensor:
    """The ids in the bits of float32 words."""
    return words.to(torch.float32).contiguous().view(torch.int32).long()


def as_words(ids: Tensor) -> Tensor:
    """The reverse, in float32."""
    return ids.to(torch.int32).view(torch.float32)


def compute(step: Step, sources: Sequence[Tensor], tensor: Callable[[str], Tensor | None]) -> Tensor:  # noqa: PLR0911, PLR0912 - a table of steps
    """sources: (..., width) each, ids in int64. `tensor`: those of the step, by the last part of their names."""
    x = sources[0]
    match step.op:
        case "linear":
            return _linear(x, tensor, "")
        case "gated":
            return apply(step.formula, _linear(x, tensor, "gate_")) * _linear(x, tensor, "")
        case "elementwise":
            return apply(step.formula, x)
        case "norm":
            return normalize(x, step.kind, step.eps, tensor("weight"), tensor("bias"))
        case "affine":
            weight, bias = tensor("weight"), tensor("bias")
            x = x if weight is None else x * weight
            return x if bias is None else x + bias
        case "softmax":
            return x.softmax(-1)
        case "log_softmax":
            return x.log_softmax(-1)
        case "concat":
            return torch.cat(list(sources), -1)
        case "slice":
            return x[..., step.start : step.stop]
        case "embedding":
            return functional.embedding(x, _needed(tensor, "weight")).flatten(-2)
        case "bag":
            return bag(x, _needed(tensor, "weight"), step.mode, step.padding, *sources[1:])
        case "bucketize":
            return bucketize(x, _needed(tensor, "boundaries"), step.right)
        case "number":
            return x.to(torch.float32)
    function, options = plain_call(step)
    result: Tensor = function(*sources, *options)
    return result


def plain_call(step: Step) -> tuple[Callable[..., Any], tuple[Any, ...]]:  # noqa: PLR0911 - a table of steps
    """The function of a step without tensors, and what it takes after the values that the step reads."""
    match step.op:
        case "where":
            return where, ()
        case "argmax":
            return argmax, ()
        case "pick":
            return pick, (step.groups,)
        case "dot":
            return dot, (step.groups, step.itself)
        case "reduce":
            return reduce, (step.groups, step.mode, step.over == "vectors")
        case "repeat":
            return repeat, (step.groups, step.times)
    if step.op in COMPARISONS:
        return compare, (step.op,)
    return {**FUNCTIONS, "maximum": torch.maximum, "minimum": torch.minimum}[step.op], ()


def _needed(tensor: Callable[[str], Tensor | None], name: str) -> Tensor:
    found = tensor(name)
    assert found is not None, name
    return found


def _linear(x: Tensor, tensor: Callable[[str], Tensor | None], half: str) -> Tensor:
    return functional.linear(x, _needed(tensor, f"{half}weight"), tensor(f"{half}bias"))


def where(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(condition != 0, yes, no)


def argmax(x: Tensor) -> Tensor:
    return x.argmax(-1, keepdim=True)


def compare(a: Tensor, b: Tensor, op: str) -> Tensor:
    return COMPARISONS[op](a, b).to(a.dtype)


def bag(
    ids: Tensor,
    table: Tensor,
    mode: str,
    padding: int | None,
    factors: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """ids: (..., k). Absent ids and the padding do not count; a bag without ids is 0. It sums in `dtype`."""
    counted = ids != ABSENT
    if padding is not None:
        counted = counted & (ids != padding)
    counted = counted.unsqueeze(-1)
    rows = functional.embedding(ids.clamp(min=0), table).to(dtype or table.dtype)
    if mode == "max":
        most = rows.masked_fill(~counted, -torch.inf).amax(-2)
        return torch.where(counted.any(-2), most, 0.0)
    if factors is not None:
        rows = rows * factors.unsqueeze(-1)
    total = torch.where(counted, rows, 0.0).sum(-2)
    return total / counted.sum(-2).clamp(min=1) if mode == "mean" else total


def bucketize(x: Tensor, boundaries: Tensor, right: bool) -> Tensor:
    return torch.bucketize(x.contiguous(), boundaries, right=right)


def _vectors(x: Tensor, groups: int) -> Tensor:
    return x.reshape(*x.shape[:-1], groups, -1)


def pick(x: Tensor, ids: Tensor, groups: int) -> Tensor:
    parts = _vectors(x, groups)
    index = ids.unsqueeze(-1).expand(*parts.shape[:-2], 1, parts.shape[-1])
    return parts.gather(-2, index).squeeze(-2)


def dot(x: Tensor, groups: int, itself: bool) -> Tensor:
    vectors = _vectors(x, groups)
    first, second = torch.tril_indices(groups, groups, 0 if itself else -1, device=x.device)
    return (vectors @ vectors.transpose(-1, -2))[..., first, second]


def reduce(x: Tensor, groups: int, mode: str, over_vectors: bool) -> Tensor:
    vectors = _vectors(x, groups)
    dim = -2 if over_vectors else -1
    if mode == "max":
        return vectors.amax(dim)
    return vectors.sum(dim) if mode == "sum" else vectors.mean(dim)


def repeat(x: Tensor, groups: int, times: int) -> Tensor:
    return _vectors(x, groups).repeat_interleave(times, dim=-2).flatten(-2)


def normalize(
    x: Tensor, kind: str, eps: float, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """A Norm step over the last dimension."""
    if kind == "layer":
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
    if kind == "rms":
        x = functional.rms_norm(x, x.shape[-1:], weight, eps)
    else:
        x = functional.normalize(x, dim=-1, eps=eps)
        x = x if weight is None else x * weight
    return x if bias is None else x + bias


def apply_rules(rules: Sequence[Rule], numbers: Tensor) -> Tensor:
    """Applies the rules of a field. numbers: (rows, width) int64."""
    for rule in rules:
        match rule.op:
            case "add":
                numbers = numbers + torch.tensor(rule.values, device=numbers.device)
            case "multiply":
                numbers = numbers * rule.factor
            case "divide":
                numbers = torch.div(numbers, rule.divisor, rounding_mode="floor")
            case "modulo":
                numbers = (torch.fmod if rule.truncated else torch.remainder)(numbers, rule.divisor)
            case "clip":
                numbers = numbers.clamp(rule.least, rule.most)
            case "replace":
                numbers = torch.where(numbers == rule.found, rule.by, numbers)
    return numbers
