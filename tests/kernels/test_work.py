# SPDX-License-Identifier: Apache-2.0
"""The arithmetic and the bytes of a program."""

import pytest

from fused_mlp.kernels.work import work_of
from fused_mlp.models import LayerSpec, MlpSpec
from fused_mlp.models.program.spec import (
    Affine,
    Combine,
    Concat,
    Elementwise,
    Gated,
    Linear,
    Norm,
    Slice,
    Softmax,
)


def test_a_chain_is_counted_by_its_products():
    spec = MlpSpec.of_layers(
        7, [LayerSpec(out_features=5, activation="relu"), LayerSpec(out_features=3, bias=False)]
    )
    work = work_of(spec)
    assert work.product_flops == 2 * (7 * 5 + 5 * 3)
    assert work.flops == work.product_flops + 5 + 5  # the bias, and relu
    assert work.weight_bytes == 4 * spec.parameters
    assert work.bytes_moved(10) == 4 * (spec.parameters + 10 * (7 + 3))


@pytest.mark.parametrize(
    ("step", "products", "others"),
    [
        (Linear(name="s", input="input", out_features=5), 2 * 8 * 5, 5),
        (Gated(name="s", input="input", out_features=5, function="silu"), 4 * 8 * 5, 5 * (2 + 1 + 1)),
        (Elementwise(name="s", input="input", function="x * sigmoid(2 * x)"), 0, 8 * 3),
        (Elementwise(name="s", input="input", function="x"), 0, 0),
        (Norm(name="s", input="input", kind="layer", weight=False, bias=False), 0, 8 * 6),
        (Norm(name="s", input="input", kind="rms", bias=False), 0, 8 * 4),
        (Affine(name="s", input="input"), 0, 8 * 2),
        (Softmax(name="s", input="input"), 0, 8 * 4),
        (Combine(name="s", op="add", inputs=("input", "input")), 0, 8),
        (Concat(name="s", inputs=("input", "input")), 0, 0),
        (Slice(name="s", input="input", start=2, stop=4), 0, 0),
    ],
)
def test_every_step_is_counted(step, products, others):
    spec = MlpSpec(in_features=8, steps=[step])
    (counted,) = work_of(spec).steps
    assert (counted.product_flops, counted.other_flops) == (products, others)
    assert counted.weight_bytes == 4 * spec.parameters


def test_weights_that_are_used_twice_are_read_once():
    spec = MlpSpec(
        in_features=4,
        steps=[
            Linear(name="a", input="input", out_features=4),
            Linear(name="b", input="a", out_features=4, weights="a"),
        ],
    )
    work = work_of(spec)
    assert work.weight_bytes == 4 * spec.parameters == 4 * (16 + 4)
    assert work.product_flops == 2 * 2 * 16
