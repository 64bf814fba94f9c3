"""A program as the compiled CPU kernel takes it: the arguments of its operations' records. Owns which tensors an
operation uses and how a formula becomes steps on registers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fused_mlp.kernels.backends.cpu_placement import Placed, place
from fused_mlp.kernels.base import Float32
from fused_mlp.kernels.folding import fold
from fused_mlp.models import MlpSpec
from fused_mlp.models.dtypes import Array, widen
from fused_mlp.models.formula import Formula
from fused_mlp.models.spec import Gated, Linear, Norm

# name, operands (-1: the constant), the register of the result, the constant, parameters
FormulaSteps = list[tuple[str, list[int], int, float, list[float]]]


def lower(
    spec: MlpSpec, tensors: Mapping[str, Array]
) -> tuple[tuple[int, ...], list[tuple[str, dict[str, Any]]]]:
    """The sizes of the scratch buffers, and for each operation ("product" or "row") the arguments of its record."""
    wide: Mapping[str, Float32] = {name: widen(tensor) for name, tensor in tensors.items()}
    spec, wide = fold(spec, wide)
    placed = place(spec)
    return placed.scratch, [_arguments(placed, number, wide) for number in range(len(placed.operations))]


def operation_names(spec: MlpSpec, tensors: Mapping[str, Array]) -> list[str]:
    """The steps that the operations compute, for a profile: `fc1`, or `pi, v` for products side by side."""
    spec, _ = fold(spec, {name: widen(tensor) for name, tensor in tensors.items()})
    names = []
    for each in place(spec).operations:
        steps = each.products or (() if each.step is None else (each.step,))
        names.append(", ".join(step.name for step in steps) or each.value or "outputs")
    return names


def _arguments(placed: Placed, number: int, tensors: Mapping[str, Float32]) -> tuple[str, dict[str, Any]]:
    each = placed.operations[number]
    buffer, column = placed.places[each.value]
    common = {
        "input": placed.places[each.source],
        "output": (buffer, column + each.column),
        "other": None if each.combined is None else placed.places[each.combined.other],
        "combination": "add" if each.combined is None else each.combined.op,
        "then": formula_steps(each.then),
    }
    if each.kind != "product":

        def of_step(name: str) -> Float32 | None:
            return None if each.step is None else tensors.get(f"{each.step.prefix}.{name}")

        vectors = {"weight": of_step("weight"), "bias": of_step("bias")}
        if isinstance(each.step, Norm):  # a folded one has none
            vectors = {name: vectors[name] if getattr(each.step, name) else None for name in vectors}
        return "row", {**common, **vectors, "kind": each.kind, "width": each.width, "eps": each.eps}
    first = each.products[0]
    gated = isinstance(first, Gated)
    return "product", {
        **common,
        "weight": _stacked([tensors[f"{step.prefix}.weight"] for step in each.products]),
        "bias": _biases(each.products, tensors),
        "gate_weight": tensors[f"{first.prefix}.gate_weight"] if gated else None,
        "gate_bias": tensors.get(f"{first.prefix}.gate_bias") if gated else None,
        "gate": formula_steps(first.formula) if isinstance(first, Gated) else [],
        "function": formula_steps(each.function),
        "free_to_the_right": number in placed.free_to_the_right,
        "swapped": each.combined is not None and each.combined.swapped,
    }


def _stacked(arrays: list[Float32]) -> Float32:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _biases(steps: tuple[Linear | Gated, ...], tensors: Mapping[str, Float32]) -> Float32 | None:
    if len(steps) == 1:
        return tensors.get(f"{steps[0].prefix}.bias")
    none = [np.zeros(step.out_features, np.float32) for step in steps]
    return _stacked(
        [tensors.get(f"{step.prefix}.bias", zeros) for step, zeros in zip(steps, none, strict=True)]
    )


def formula_steps(formula: Formula) -> FormulaSteps:
    """A formula on as few registers as it needs. Register 0 is x, and holds the result at the end."""
    last: dict[int, int] = {}
    for number, each in enumerate(formula.instructions):
        for operand in each.operands:
            if operand >= 0:
                last[operand] = number
    holds = {0: 0}  # value -> register
    unused: list[int] = []
    most = 1
    steps: FormulaSteps = []
    for number, each in enumerate(formula.instructions):
        operands = [holds[operand] if operand >= 0 else -1 for operand in each.operands]
        constant = next((formula.constants[-1 - operand] for operand in each.operands if operand < 0), 0.0)
        unused += sorted(
            {holds[operand] for operand in each.operands if operand >= 0 and last[operand] == number}
        )
        unused.sort(reverse=True)
        if number == len(formula.instructions) - 1:
            to = 0
        elif unused:
            to = unused.pop()
        else:
            to, most = most, most + 1
        holds[number + 1] = to
        steps.append((each.op, operands, to, constant, _parameters(each.op, each.numbers)))
    return steps


def _parameters(op: str, numbers: tuple[float, ...]) -> list[float]:
    if op == "softplus":
        return [*numbers, 1.0 / numbers[0] if numbers[0] else math.inf]
    return list(numbers)
