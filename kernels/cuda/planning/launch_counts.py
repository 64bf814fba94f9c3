# SPDX-License-Identifier: Apache-2.0
"""How many kernels eager PyTorch launches for a program, step by step. Data only; imports neither torch nor triton."""

from __future__ import annotations

from fused_mlp.models import MlpSpec
from fused_mlp.models.formula import Formula
from fused_mlp.models.spec import Affine, Elementwise, Gated, Norm, Slice


def eager_launches(spec: MlpSpec) -> int:
    """A GEMM per projection (bias included), and one kernel for each function, norm, gate product, combination and
    concat. Slices are views. Casts of the input are not held against it."""
    count = int(len(spec.outputs) > 1)  # the results side by side, as kernels write them
    for step in spec.steps:
        match step:
            case Gated():
                count += 3 + function_launches(step.formula)
            case Elementwise():
                count += function_launches(step.formula)
            case Affine():
                count += step.weight + step.bias
            case Norm():
                count += norm_launches(step)
            case Slice():
                pass
            case _:
                count += 1
    return count


def function_launches(formula: Formula) -> int:
    """One where torch has the function, else one per operation."""
    if formula.simple is not None or formula.text in ("selu", "hardsigmoid"):
        return 1
    return len(formula.instructions)


def norm_launches(step: Norm) -> int:
    """torch has layer_norm and rms_norm with a weight; an l2 norm is a length, a maximum and a quotient."""
    if step.kind == "layer":
        return 1
    return 1 + step.bias if step.kind == "rms" else 3 + step.weight + step.bias
