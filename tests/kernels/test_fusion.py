# SPDX-License-Identifier: Apache-2.0
"""Which steps run in the epilogue of a product: never one whose value is read elsewhere, and never another program."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fused_mlp.kernels.fusion import Product, fuse
from fused_mlp.models import LayerSpec, Mlp, MlpSpec
from fused_mlp.models.program.activations import PRIMITIVES
from fused_mlp.models.program.evaluation import evaluate_values
from fused_mlp.models.program.formula import MAX_INSTRUCTIONS
from fused_mlp.models.program.spec import Combine, Concat, Elementwise, Gated, Linear, Norm, Output, Softmax

WIDTH = 3


def linear(name, source="input"):
    return Linear(name=name, input=source, out_features=WIDTH)


def function(name, source, text="relu"):
    return Elementwise(name=name, input=source, function=text)


def combine(name, *inputs, op="add"):
    return Combine(name=name, op=op, inputs=inputs)


def fused(*steps, **fields):
    return fuse(MlpSpec(in_features=WIDTH, steps=steps, **fields))


def names(steps):
    return [(type(step).__name__, step.name) for step in steps]


def test_a_chain_is_its_products_and_a_softmax():
    layers = [
        LayerSpec(out_features=4, activation="gelu"),
        LayerSpec(out_features=4, activation="silu", gated=True),
        LayerSpec(out_features=2),
    ]
    made = fuse(MlpSpec.of_layers(3, layers, "softmax"))
    assert names(made) == [
        ("Product", "layers.0.act"),
        ("Product", "layers.1"),
        ("Product", "layers.2"),
        ("Softmax", "output"),
    ]
    assert [step.function.text for step in made if isinstance(step, Product)] == ["gelu", "x", "x"]
    assert [step.name for step in made[0].steps] == ["layers.0", "layers.0.act"]


def test_a_residual_block_ends_in_the_epilogue_of_its_last_product():
    (norm, up, down) = fused(
        Norm(name="n", input="input", kind="layer"),
        linear("up", "n"),
        function("act", "up", "gelu"),
        linear("down", "act"),
        combine("sum", "input", "down"),
        function("out", "sum", "tanh"),
    )
    assert norm.name == "n"
    assert (up.name, up.function.text, up.combined) == ("act", "gelu", None)
    assert (down.name, down.step.name, down.then.text) == ("out", "down", "tanh")
    assert (down.combined.op, down.combined.other, down.combined.swapped) == ("add", "input", True)
    assert down.sources == ("act", "input")


def test_functions_one_after_the_other_become_one():
    (product,) = fused(linear("a"), function("b", "a", "tanh"), function("c", "b", "x * x"))
    assert (product.name, product.function.text) == ("c", "tanh(x) * tanh(x)")
    assert len(product.function.instructions) == 2


@pytest.mark.parametrize(
    ("steps", "outputs"),
    [
        # Read by two steps.
        ([linear("a"), function("r", "a"), combine("s", "a", "r")], ["s"]),
        # Read by one step, and an output.
        ([linear("a"), function("r", "a")], ["r", "a"]),
        # Both operands of one step.
        ([linear("a"), combine("s", "a", "a")], ["s"]),
        # Read twice by one step.
        ([linear("a"), Concat(name="c", inputs=("a", "a"))], ["c"]),
    ],
)
def test_a_value_that_is_read_twice_is_not_fused_away(steps, outputs):
    made = fused(*steps, outputs=[Output(name=f"o{value}", value=value) for value in outputs])
    assert "a" in {step.name for step in made}
    assert made[0] == Product(steps[0], "a", (steps[0],))


def test_one_combination_per_product():
    made = fused(linear("a"), combine("s", "a", "input"), combine("t", "s", "input", op="multiply"))
    assert names(made) == [("Product", "s"), ("Combine", "t")]


def test_of_two_products_the_younger_takes_the_other():
    made = fused(
        linear("a"), linear("b"), function("f", "a", "sigmoid"), combine("s", "b", "f", op="multiply")
    )
    assert names(made) == [("Product", "b"), ("Product", "s")]
    assert made[1].step.name == "a"
    assert (made[1].combined.other, made[1].combined.swapped) == ("b", True)


def test_a_product_waits_for_what_it_is_combined_with():
    made = fused(
        linear("a"), Norm(name="n", input="input", kind="rms"), combine("s", "a", "n", op="subtract")
    )
    assert names(made) == [("Norm", "n"), ("Product", "s")]
    assert not made[1].combined.swapped


def test_a_function_too_long_for_one_epilogue_stays_a_step():
    long = " + ".join(f"sin({n} * x)" for n in range(1, MAX_INSTRUCTIONS // 3))
    made = fused(linear("a"), function("f", "a", long), function("g", "f", long))
    assert names(made) == [("Product", "f"), ("Elementwise", "g")]


@st.composite
def programs(draw):
    """Any graph of steps of one width."""
    steps, values = [], ["input"]
    for index in range(draw(st.integers(1, 14))):
        name, source = f"v{index}", draw(st.sampled_from(values[-4:]))
        other = draw(st.sampled_from(values))
        kinds = {
            "linear": lambda name=name, source=source: linear(name, source),
            "gated": lambda name=name, source=source: Gated(
                name=name, input=source, out_features=WIDTH, function="sigmoid"
            ),
            "function": lambda name=name, source=source: function(
                name, source, draw(st.sampled_from(["tanh", "relu", "x * x"]))
            ),
            "combine": lambda name=name, source=source, other=other: combine(
                name, source, other, op=draw(st.sampled_from(["add", "subtract", "maximum"]))
            ),
            "softmax": lambda name=name, source=source: Softmax(name=name, input=source),
        }
        steps.append(
            kinds[draw(st.sampled_from([*kinds, "linear", "function", "function", "combine", "combine"]))]()
        )
        values.append(name)
    read = {source for step in steps for source in step.sources}
    heads = [name for name in values[1:] if name not in read]
    heads += draw(st.lists(st.sampled_from(values), max_size=2))
    outputs = [Output(name=f"o{index}", value=value) for index, value in enumerate(heads)]
    return MlpSpec(in_features=WIDTH, steps=steps, outputs=outputs)


@given(programs())
@settings(max_examples=150, deadline=None)
def test_fused_steps_can_run_in_order_and_compute_the_same_values(spec):
    generator = np.random.default_rng(0)
    mlp = Mlp(
        spec, {name: 0.5 * generator.standard_normal(shape, np.float32) for name, shape in spec.shapes()}
    )
    values = evaluate_values(mlp, generator.standard_normal((4, WIDTH)))
    made = {"input"}
    steps = []
    for step in fuse(spec):
        assert set(step.sources) <= made
        made.add(step.name)
        if not isinstance(step, Product):
            steps.append(step)
            continue
        steps += step.steps
        value = step.function(values[step.step.name])
        if step.combined is not None:
            pair = [value, values[step.combined.other]]
            value = PRIMITIVES[step.combined.op](*(pair[::-1] if step.combined.swapped else pair))
        assert np.array_equal(step.then(value), values[step.name])
    assert {output.value for output in spec.outputs} <= made
    assert sorted(step.name for step in steps) == sorted(step.name for step in spec.steps)
