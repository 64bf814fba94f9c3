# SPDX-License-Identifier: Apache-2.0
"""A program as the compiled CPU kernel takes it: the arguments of its operations' records. Owns which tensors an
operation uses and how a formula becomes steps on registers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fused_mlp.kernels.backends.cpu_placement import Operation, Placed, place
from fused_mlp.kernels.base import Float32
from fused_mlp.kernels.folding import fold
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.formula import Formula
from fused_mlp.models.program.spec import Affine, Gated, Linear, Norm, Step
from fused_mlp.models.program.steps import Bag, Bucketize, Dot, Embedding, Pick, Reduce, Repeat
from fused_mlp.models.weights.dtypes import Array, widen
from fused_mlp.models.weights.quantization import Int8Matrix, Reduced

# name, operands (-1: the constant), the register of the result, the constant, parameters
FormulaSteps = list[tuple[str, list[int], int, float, list[float]]]


def lower(
    spec: MlpSpec, tensors: Mapping[str, Array], reduced: Reduced
) -> tuple[tuple[int, ...], list[tuple[str, Any]]]:
    """The sizes of the scratch buffers, and for each operation ("product" or "row") the arguments of its record; of
    "lookups" a list of them, one for each table."""
    placed, wide, narrow = _prepare(spec, tensors, reduced)
    widths = spec.widths_by_name
    return placed.scratch, [
        ("lookups", _lookups(placed, each, widths, wide, narrow))
        if each.lookups
        else _arguments(placed, number, widths, wide, narrow)
        for number, each in enumerate(placed.operations)
    ]


def _prepare(
    spec: MlpSpec, tensors: Mapping[str, Array], reduced: Reduced
) -> tuple[Placed, Mapping[str, Float32], Reduced]:
    """The operations, all tensors in float32, and the matrices in fewer bits: those of a bfloat16 model too, whose
    products are the same in either."""
    narrow = narrow_matrices(tensors, reduced)
    # Tables in bfloat16 are read as they are, and may be too large to be widened.
    tables = spec.tables if spec.dtype == "bfloat16" else ()
    in_float32 = {name: widen(tensor) for name, tensor in tensors.items() if name not in tables}
    spec, wide = fold(spec, in_float32, narrow.keys())
    kinds = {name: type(matrix).__name__ for name, matrix in narrow.items()}
    return place(spec, lambda step: kinds.get(f"{step.prefix}.weight", "")), wide, narrow


def narrow_matrices(tensors: Mapping[str, Array], reduced: Reduced) -> Reduced:
    """The matrices that the kernel reads in fewer bits, by name."""
    halves = {
        name: array for name, array in tensors.items() if array.ndim == 2 and array.dtype.name == "bfloat16"
    }
    return {**halves, **reduced}


def operation_names(spec: MlpSpec, tensors: Mapping[str, Array], reduced: Reduced) -> list[str]:
    """The steps that the operations compute, for a profile: `fc1`, or `pi, v` for products side by side."""
    names = []
    for each in _prepare(spec, tensors, reduced)[0].operations:
        steps = each.products or each.lookups or (() if each.step is None else (each.step,))
        names.append(", ".join(step.name for step in steps) or each.value or "outputs")
    return names


def _lookups(
    placed: Placed,
    operation: Operation,
    widths: Mapping[str, int],
    tensors: Mapping[str, Float32],
    reduced: Reduced,
) -> list[dict[str, Any]]:
    return [_lookup(placed, step, widths, tensors, reduced) for step in operation.lookups]


def _lookup(
    placed: Placed,
    step: Embedding | Bag,
    widths: Mapping[str, int],
    tensors: Mapping[str, Float32],
    reduced: Reduced,
) -> dict[str, Any]:
    matrix = _matrix("", [f"{step.prefix}.weight"], tensors, reduced)
    bag = step if isinstance(step, Bag) else None
    return {
        "table": matrix["weight"],
        "scale": matrix["scale"],
        "input": placed.places[step.input],
        "ids": widths[step.input],
        "output": placed.places[step.name],
        "bag": None if bag is None else bag.mode,
        "padding": -1 if bag is None or bag.padding is None else bag.padding,
        "factors": None if bag is None or bag.factors is None else placed.places[bag.factors],
    }


def _grouped(placed: Placed, each: Operation, step: Step, in_width: int) -> dict[str, Any]:
    """The fields that only the record of such a step has."""
    options: dict[str, Any] = {"in_width": in_width}
    places = [placed.places[source] for source in each.others]
    options |= dict(zip(("other", "third"), places, strict=False))
    match step:
        case Bucketize():
            options |= {"count": step.count, "flag": step.right}
        case Pick():
            options |= {"groups": step.groups}
        case Dot():
            options |= {"groups": step.groups, "flag": step.itself}
        case Reduce():
            options |= {"groups": step.groups, "reduction": step.mode, "flag": step.over == "features"}
        case Repeat():
            options |= {"groups": step.groups, "count": step.times}
    return options


def _arguments(
    placed: Placed,
    number: int,
    widths: Mapping[str, int],
    tensors: Mapping[str, Float32],
    reduced: Reduced,
) -> tuple[str, dict[str, Any]]:
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
        if each.step is not None and not isinstance(each.step, (Affine, Norm)):
            vectors["weight"] = of_step("boundaries")
            common |= _grouped(placed, each, each.step, widths[each.source])
        if isinstance(each.step, Norm):  # a folded one has none
            vectors = {name: vectors[name] if getattr(each.step, name) else None for name in vectors}
        return "row", {**common, **vectors, "kind": each.kind, "width": each.width, "eps": each.eps}
    first = each.products[0]
    gated = isinstance(first, Gated)
    return "product", {
        **common,
        **_matrix("", [f"{step.prefix}.weight" for step in each.products], tensors, reduced),
        **_matrix("gate_", [f"{first.prefix}.gate_weight"] if gated else [], tensors, reduced),
        "bias": _biases(each.products, tensors),
        "gate_bias": tensors.get(f"{first.prefix}.gate_bias") if gated else None,
        "gate": formula_steps(first.formula) if isinstance(first, Gated) else [],
        "function": formula_steps(each.function),
        "free_to_the_right": number in placed.free_to_the_right,
        "swapped": each.combined is not None and each.combined.swapped,
    }


def _matrix(half: str, names: list[str], tensors: Mapping[str, Float32], reduced: Reduced) -> dict[str, Any]:
    """The weights of matrices one above the other, all in one precision: float32, the bits of bfloat16, or int8 with
    their scales."""
    if not names:
        return {f"{half}weight": None, f"{half}scale": None}
    first = reduced.get(names[0])
    if first is None:
        return {f"{half}weight": _stacked([tensors[name] for name in names]), f"{half}scale": None}
    if not isinstance(first, Int8Matrix):
        halves = [
            widest.view(np.uint16) for name in names if not isinstance(widest := reduced[name], Int8Matrix)
        ]
        return {f"{half}weight": _stacked(halves), f"{half}scale": None}
    matrices = [matrix for name in names if isinstance(matrix := reduced[name], Int8Matrix)]
    return {
        f"{half}weight": _stacked([matrix.values for matrix in matrices]),
        f"{half}scale": _stacked([matrix.scales for matrix in matrices]),
    }


def _stacked(arrays: list[Array]) -> Array:
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
