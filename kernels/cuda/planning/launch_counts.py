# SPDX-License-Identifier: Apache-2.0
"""How many kernels eager PyTorch launches for a program, step by step. Data only; imports neither torch nor triton."""

from __future__ import annotations

from fused_mlp.models import MlpSpec
from fused_mlp.models.program.formula import Formula
from fused_mlp.models.program.spec import Affine, Elementwise, Gated, Norm, Step


def eager_launches(spec: MlpSpec) -> int:
    """A GEMM per projection (bias included), and one kernel for each function, norm, gate product, combination and
    concat. Slices are views. Casts of the input are not held against it."""
    side_by_side = len(spec.outputs) > 1  # the results, as kernels write them
    return side_by_side + sum(map(step_launches, spec.steps))


def step_launches(step: Step) -> int:  # noqa: PLR0911 - a table of steps
    match step:
        case Gated():
            return 3 + function_launches(step.formula)
        case Elementwise():
            return function_launches(step.formula)
        case Affine():
            return step.weight + step.bias
        case Norm() if step.kind == "layer":  # torch has layer_norm, and rms_norm with a weight
            return 1
        case Norm() if step.kind == "rms":
            return 1 + step.bias
        case Norm():  # a length, a maximum and a quotient
            return 3 + step.weight + step.bias
    return step.op != "slice"


def function_launches(formula: Formula) -> int:
    """One where torch has the function, else one per operation."""
    if formula.simple is not None or formula.text in ("selu", "hardsigmoid"):
        return 1
    return len(formula.instructions)
