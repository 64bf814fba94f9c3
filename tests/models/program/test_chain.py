# SPDX-License-Identifier: Apache-2.0
"""Chains of layers and steps are two spellings of the same programs."""

from typing import get_args

import numpy as np
import pytest
from pydantic import ValidationError

from fused_mlp.models import Activation, LayerSpec, Mlp, MlpSpec
from fused_mlp.models.program.activations import softmax
from fused_mlp.models.program.chain import MAX_LAYERS, activation_of, function_text
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.formula import parse
from fused_mlp.models.program.spec import Combine, Elementwise, Gated, Linear, Norm, Output, Softmax

ACTIVATIONS = get_args(Activation)
OUTPUTS = (*ACTIVATIONS, "softmax", "log_softmax")


def slope_of(activation):
    return {"negative_slope": 0.25} if activation == "leaky_relu" else {}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("output", OUTPUTS)
def test_layers_become_steps_and_steps_layers(activation, gated, output):
    layers = (
        LayerSpec(out_features=4, activation=activation, gated=gated, **slope_of(activation)),
        LayerSpec(out_features=5, bias=False, activation="relu"),
        LayerSpec(out_features=3, activation=activation if gated else "identity", gated=gated,
                  **(slope_of(activation) if gated else {})),
    )  # fmt: skip
    slope = 0.25 if output == "leaky_relu" else 0.01
    spec = MlpSpec.of_layers(2, layers, output, slope)
    assert spec.layers == layers
    assert (spec.output_activation, spec.output_negative_slope) == (output, slope)
    again = MlpSpec.model_validate_json(spec.model_dump_json())
    assert again == spec
    assert again.layers == layers


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_formulas(activation):
    slope = 0.25 if activation == "leaky_relu" else 0.01
    assert activation_of(function_text(activation, slope)) == (activation, slope)


@pytest.mark.parametrize("function", ["elu(x, 0.5)", "softplus(x, 2)", "x * sigmoid(2 * x)", "sin", "selu"])
def test_other_functions_are_no_activations_of_a_layer(function):
    assert activation_of(function) is None
    spec = MlpSpec(
        in_features=2,
        steps=[
            Linear(name="a", input="input", out_features=3),
            Elementwise(name="f", input="a", function=function),
        ],
    )
    assert spec.layers is None
    assert spec.output_activation == "identity"


@pytest.mark.parametrize("gated", [False, True])
def test_both_spellings_compute_the_same(gated):
    hidden = LayerSpec(out_features=4, activation="silu", gated=gated)
    spec = MlpSpec.of_layers(3, (hidden, LayerSpec(out_features=2)), "softmax")
    generator = np.random.default_rng(0)
    mlp = Mlp(spec, {name: generator.standard_normal(shape, np.float32) for name, shape in spec.shapes()})
    value = generator.standard_normal((6, 3))
    first, last = mlp.layers
    up = value @ first.weight.T + first.bias
    gate = value @ first.gate_weight.T + first.gate_bias if gated else up
    inner = parse("silu")(gate) * (up if gated else 1)
    expected = softmax(inner @ last.weight.T + last.bias)
    np.testing.assert_allclose(evaluate(mlp, value), expected, rtol=1e-12)


A = Linear(name="a", input="input", out_features=4)
RELU = Elementwise(name="r", input="a", function="relu")


@pytest.mark.parametrize(
    "steps",
    [
        [A, Norm(name="n", input="a", kind="layer")],
        [A, Combine(name="s", op="add", inputs=("a", "input"))],
        [A, RELU, Linear(name="b", input="a", out_features=4), Combine(name="s", op="add", inputs=("r", "b"))],
        [RELU.model_copy(update={"input": "input"}), Linear(name="a", input="r", out_features=4)],
        [A, RELU, Softmax(name="p", input="r")],  # two activations after an ungated last layer
        [A, Softmax(name="p", input="a"), Linear(name="b", input="p", out_features=2)],
        [A, Linear(name="b", input="a", out_features=4, weights="a")],  # one matrix twice
        [Gated(name="g", input="input", out_features=4, function="sin")],
        [Softmax(name="p", input="input")],
    ],
)  # fmt: skip
def test_other_programs_are_no_chains(steps):
    assert MlpSpec(in_features=4, steps=steps).layers is None


def test_a_chain_has_one_output_and_it_is_the_last_value():
    steps = [A, RELU]
    assert MlpSpec(in_features=4, steps=steps, outputs=[Output(value="r")]).layers is not None
    for outputs in ([Output(name="pi", value="r")], [Output(value="r"), Output(name="a", value="a")]):
        assert MlpSpec(in_features=4, steps=steps, outputs=outputs).layers is None


def test_names_of_steps_are_free():
    spec = MlpSpec(
        in_features=4,
        steps=[
            A,
            RELU,
            Linear(name="blocks.3.fc", input="r", out_features=2),
            Softmax(name="p", input="blocks.3.fc"),
        ],
    )
    assert spec.layers == (LayerSpec(out_features=4, activation="relu"), LayerSpec(out_features=2))
    assert spec.output_activation == "softmax"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"layers": 5}, "expected a list"),
        ({"layers": None}, "expected a list"),
        ({"layers": "layers"}, "expected a list"),
        ({"layers": {}}, "expected a list"),
        ({"layers": [5]}, "LayerSpec"),
        ({"layers": [{"out_features": 2}] * (MAX_LAYERS + 1)}, "at most 256"),
        ({"layers": [{"out_features": 2}], "steps": []}, "got both"),
        ({"layers": [{"out_features": 2}], "output_activation": []}, "there is no activation"),
        ({"layers": [{"out_features": 2}], "output_activation": "swirl"}, "there is no activation 'swirl'"),
        (
            {
                "layers": [{"out_features": 2}],
                "output_activation": "leaky_relu",
                "output_negative_slope": "0.1) + (x",
            },
            "function",
        ),
    ],
)
def test_damaged_layers_are_refused(fields, text):
    with pytest.raises(ValidationError, match=text):
        MlpSpec.model_validate({"in_features": 2, **fields})
