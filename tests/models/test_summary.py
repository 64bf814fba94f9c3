"""A program in one line."""

import pytest

from fused_mlp.models import LayerSpec, MlpSpec
from fused_mlp.models.spec import (
    Affine,
    Combine,
    Concat,
    Elementwise,
    Gated,
    Linear,
    Norm,
    Output,
    Slice,
    Softmax,
)


def chain(*widths, output="identity", **layer):
    hidden = [LayerSpec(out_features=width, **layer) for width in widths[1:-1]]
    return MlpSpec.of_layers(widths[0], (*hidden, LayerSpec(out_features=widths[-1])), output)


def tower(blocks):
    steps, value = [], "input"
    for index in range(blocks):
        steps += [
            Norm(name=f"{index}.ln", input=value, kind="layer"),
            Linear(name=f"{index}.up", input=f"{index}.ln", out_features=384),
            Elementwise(name=f"{index}.act", input=f"{index}.up", function="gelu"),
            Linear(name=f"{index}.down", input=f"{index}.act", out_features=192),
            Combine(name=f"{index}.sum", op="add", inputs=(value, f"{index}.down")),
        ]
        value = f"{index}.sum"
    steps += [
        Norm(name="ln", input=value, kind="layer"),
        Linear(name="head", input="ln", out_features=10),
    ]
    return MlpSpec(in_features=192, steps=steps)


def of(*steps, in_features=8, **fields):
    return MlpSpec(in_features=in_features, steps=steps, **fields)


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (chain(784, 512, 256, 10, activation="relu"), "784-512-256-10 relu"),
        (chain(8, 4), "8-4"),
        (chain(8, 4, 2, activation="gelu", gated=True, output="softmax"), "8-4-2 gated gelu+softmax"),
        (chain(8, 4, 2, gated=True), "8-4-2 gated"),
        (chain(8, 4, 2, activation="leaky_relu", negative_slope=0.2), "8-4-2 leaky_relu(x, 0.2)"),
        (tower(3), "192 -> 3 x [ln, 384 gelu, 192, +] -> ln -> 10"),
        (tower(1), "192 -> ln -> 384 gelu -> 192 -> + -> ln -> 10"),
        (
            of(
                Linear(name="a", input="input", out_features=64),
                Elementwise(name="t", input="a", function="tanh"),
                Linear(name="pi", input="t", out_features=6),
                Linear(name="v", input="t", out_features=1),
                outputs=[Output(name="pi", value="pi"), Output(name="v", value="v")],
            ),
            "8 -> 64 tanh -> 6 -> 1 => pi 6, v 1",
        ),
        (
            of(
                Gated(name="g", input="input", out_features=8, function="silu"),
                Affine(name="b", input="g"),
                Norm(name="r", input="b", kind="rms", bias=False),
                Norm(name="l", input="r", kind="l2", weight=False, bias=False),
                Combine(name="m", op="maximum", inputs=("l", "input")),
                Concat(name="c", inputs=("m", "input")),
                Slice(name="s", input="c", start=1, stop=5),
                Elementwise(name="q", input="s", function="x * x"),
                Softmax(name="p", input="q"),
            ),
            "8 -> 8 gated silu -> affine -> rms -> l2 -> max -> concat -> [1:5] -> square -> softmax",
        ),
    ],
)
def test_a_program_is_told_in_one_line(spec, line):
    assert spec.summary() == line


def test_a_layer_that_repeats_is_folded_when_that_is_shorter():
    def equal_layers(count):
        steps, value = [Norm(name="n", input="input", kind="rms", bias=False)], "n"
        for index in range(count):
            steps += [
                Linear(name=f"{index}", input=value, out_features=8),
                Elementwise(name=f"{index}.f", input=f"{index}", function="relu"),
            ]
            value = f"{index}.f"
        return of(*steps).summary()

    assert equal_layers(2) == "8 -> rms -> 8 relu -> 8 relu"
    assert equal_layers(8) == "8 -> rms -> 8 x [8 relu]"


def test_thousands_of_steps_without_a_pattern_are_cut():
    steps, value = [Norm(name="n", input="input", kind="l2")], "n"
    for index in range(4000):
        steps.append(Linear(name=f"{index}", input=value, out_features=index + 1))
        value = f"{index}"
    line = of(*steps).summary()
    assert line.startswith("8 -> l2 -> 1 -> 2 -> 3 -> ")
    assert line.endswith(" -> 3961 more")
    assert len(line) < 400
