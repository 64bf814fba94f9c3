# SPDX-License-Identifier: Apache-2.0
"""The spec: one way to write each model down."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fused_mlp.models import LayerSpec, LayerWeights, Mlp, MlpSpec, ModelLoadError
from fused_mlp.models.program.spec import (
    MAX_STEPS,
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


def spec(*layers, **fields):
    return MlpSpec.model_validate(
        {"in_features": 2, "layers": layers or (LayerSpec(out_features=3),), **fields}
    )


def test_widths_parameters_and_summary():
    layers = (
        LayerSpec(out_features=4, gated=True, activation="silu"),
        LayerSpec(out_features=5, bias=False, activation="relu"),
        LayerSpec(out_features=3),
    )
    made = spec(*layers, output_activation="softmax")
    assert made.widths == (2, 4, 5, 3)
    assert made.parameters == 2 * (2 * 4 + 4) + 4 * 5 + (5 * 3 + 3)
    assert made.summary() == "2-4-5-3 gated silu+relu+softmax"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: spec(LayerSpec(out_features=3, activation="relu")), "write it as output_activation"),
        (lambda: LayerSpec(out_features=3, activation="relu", negative_slope=0.2), "relu has no slope"),
        (lambda: spec(output_negative_slope=0.2), "identity has no slope"),
        (lambda: spec(labels=("a",)), "1 labels for 3 outputs"),
        (lambda: LayerSpec(out_features=0), "greater than or equal to 1"),
        (lambda: LayerSpec(out_features=3, activation="softmax"), "activation"),
        (lambda: LayerSpec(out_features=3, activation="leaky_relu", negative_slope=float("nan")), "finite"),
        (lambda: MlpSpec.of_layers(2, ()), "at least 1"),
        (lambda: spec(dtype="float64"), "dtype"),
        (lambda: spec(surprise=1), "surprise"),
    ],
)
def test_what_is_not_a_model_or_a_second_way_to_write_one_is_refused(make, text):
    with pytest.raises(ValidationError, match=text):
        make()


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({}, "'layers.0.weight' is missing"),
        ({"0.weight": torch.ones(3, 2)}, "'layers.0.weight' is missing"),
        ({"layers.0.weight": torch.ones(3, 2)}, "'layers.0.bias' is missing"),
        ({"layers.0.weight": torch.ones(2, 3), "layers.0.bias": torch.ones(3)}, "got \\(2, 3\\)"),
        (
            {
                "layers.0.weight": torch.ones(3, 2),
                "layers.0.bias": torch.ones(3),
                "layers.00.bias": torch.ones(3),
            },
            "'layers.00.bias' is not part",
        ),
    ],
)
def test_tensors_that_do_not_fit_the_spec_are_refused_by_name(tensors, text):
    with pytest.raises(ModelLoadError, match=text):
        Mlp(spec(), tensors)


def test_the_number_of_layers_has_to_match():
    with pytest.raises(ModelLoadError, match="2 layers of weights for 1 in the spec"):
        Mlp(spec(), [LayerWeights(torch.ones(3, 2))] * 2)


def test_weights_of_another_layout_become_plain_copies():
    weight = torch.randn(2, 3).T  # not contiguous
    mlp = Mlp(spec(LayerSpec(out_features=3, bias=False)), [LayerWeights(weight.requires_grad_())])
    got = mlp.layers[0].weight
    assert isinstance(got, np.ndarray)
    assert got.flags.c_contiguous
    assert not np.shares_memory(got, weight.detach().numpy())
    assert np.array_equal(got, weight.detach())
    with pytest.raises(ModelLoadError, match="not a plain dense tensor"):
        Mlp(spec(LayerSpec(out_features=3, bias=False)), [LayerWeights(torch.ones(3, 2).to_sparse())])


A = Linear(name="a", input="input", out_features=4)
B = Linear(name="b", input="a", out_features=1)
WIDEST = Linear(name="a", input="input", out_features=1 << 20)
HEADS = [Output(name="pi", value="a"), Output(name="v", value="b", squeeze=True)]


def program(*steps, **fields):
    return MlpSpec(in_features=2, steps=steps, **fields)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MlpSpec(in_features=2, steps=[]), "at least 1"),
        (lambda: program(A, A), "'a': there is a value of that name already"),
        (lambda: program(A.model_copy(update={"name": "input"})), "'input': there is a value of that name already"),
        (lambda: program(B, A), "'b' reads 'a', which no step before it makes"),
        (lambda: program(Linear(name="b", input="b", out_features=1)), "'b' reads 'b', which no step before it makes"),
        (lambda: program(A, Norm(name="n", input="input", kind="rms")), "'a': nothing uses its value"),
        (lambda: program(A, Combine(name="s", op="add", inputs=("a", "input"))), "'s': expected two .* got 4 and 2"),
        (lambda: program(A, Slice(name="s", input="a", start=2, stop=5)), r"'s': \[2, 5\) is no part of 4 features"),
        (lambda: program(A, Slice(name="s", input="a", start=2, stop=2)), r"'s': \[2, 2\) is no part of 4 features"),
        (lambda: program(WIDEST, Concat(name="c", inputs=("a", "a"))), "'c': 2097152 features, expected at most"),
        (lambda: program(A, outputs=[Output(value="b")]), "there is no value 'b'"),
        (lambda: program(A, outputs=[Output(value="a", squeeze=True)]), "only one feature can be squeezed, not 4"),
        (lambda: program(A, outputs=[Output(value="a"), Output(value="input")]), "two outputs have the same name"),
        (lambda: program(A, outputs=[]), "outputs"),
        (lambda: program(A, labels=["a", "b"]), "2 labels for 4 outputs"),
        (lambda: program(A, input_shape=(3,)), "input_shape"),
        (lambda: program(A, B.model_copy(update={"weights": "a"})), "'b': other shapes than .* it shares 'a' with"),
        (lambda: Elementwise(name="f", input="input", function="swirl"), "there is no function 'swirl'"),
        (lambda: Linear(name="bad name", input="input", out_features=1), "name"),
        (lambda: Linear(name="", input="input", out_features=1), "name"),
        (lambda: Linear(name="a", input="input", out_features=0), "out_features"),
        (lambda: Linear(name="a", input="input", out_features=(1 << 20) + 1), "out_features"),
        (lambda: Norm(name="a", input="input", kind="batch"), "kind"),
        (lambda: Norm(name="a", input="input", kind="rms", eps=float("nan")), "eps"),
        (lambda: Concat(name="a", inputs=("input",)), "inputs"),
        (lambda: Combine(name="a", op="power", inputs=("input", "input")), "op"),
        (lambda: Linear(name="a", input="input", out_features=1, surprise=1), "surprise"),
        (lambda: MlpSpec(in_features=2, steps=[{"op": "attention", "name": "a", "input": "input"}]), "attention"),
        (lambda: MlpSpec.model_validate({"in_features": 2, "steps": {"op": "linear"}}), "steps"),
        (lambda: MlpSpec.model_validate({"in_features": 2, "steps": 5}), "steps"),
        (lambda: MlpSpec.model_validate({"in_features": 2, "steps": [5]}), "steps"),
        (lambda: MlpSpec.model_validate({"in_features": 2}), "steps"),
    ],
)  # fmt: skip
def test_what_is_no_program_is_refused_by_the_name_of_its_step(make, text):
    with pytest.raises(ValidationError, match=text):
        make()


def test_a_program_is_written_and_read_again():
    spec = program(
        A,
        Gated(name="g", input="a", out_features=4, function="gelu"),
        Norm(name="n", input="g", kind="layer", eps=1e-6, bias=False),
        Affine(name="bn", input="n", bias=False),
        Elementwise(name="f", input="bn", function="relu(x) * 1"),
        Combine(name="s", op="subtract", inputs=["f", "a"]),
        Concat(name="c", inputs=["s", "input"]),
        Slice(name="t", input="c", start=1, stop=6),
        Softmax(name="p", input="t", op="log_softmax"),
        outputs=[Output(name="p", value="p"), Output(name="hidden", value="a")],
        input_shape=[2, 1],
        labels=list("abcde"),
        dtype="bfloat16",
    )
    assert MlpSpec.model_validate_json(spec.model_dump_json()) == spec
    assert MlpSpec.model_validate_json(spec.model_dump_json(exclude_defaults=True)) == spec
    assert [step["op"] for step in spec.model_dump(exclude_defaults=True)["steps"]] == [
        "linear", "gated", "norm", "affine", "elementwise", "subtract", "concat", "slice", "log_softmax",
    ]  # fmt: skip
    assert spec.widths_by_name == {
        "input": 2, "a": 4, "g": 4, "n": 4, "bn": 4, "f": 4, "s": 4, "c": 6, "t": 5, "p": 5,
    }  # fmt: skip
    assert dict(spec.shapes()) == {
        "a.weight": (4, 2),
        "a.bias": (4,),
        "g.weight": (4, 4),
        "g.bias": (4,),
        "g.gate_weight": (4, 4),
        "g.gate_bias": (4,),
        "n.weight": (4,),
        "bn.weight": (4,),
    }


def test_the_last_step_is_the_output_where_none_is_named():
    spec = program(A, B)
    assert spec.outputs == (Output(name="output", value="b"),)


def test_outputs_are_found_by_name():
    spec = program(A, B, outputs=HEADS)
    assert spec.output_widths == (4, 1)
    assert spec.out_features == 5
    assert (spec.columns("pi"), spec.columns("v")) == (slice(0, 4), slice(4, 5))
    with pytest.raises(KeyError):
        spec.columns("value")


def test_a_program_of_the_most_steps_is_taken_and_one_more_is_not():
    def relus(count):
        return [
            {
                "op": "elementwise",
                "name": f"s{index}",
                "input": f"s{index - 1}" if index else "input",
                "function": "relu",
            }
            for index in range(count)
        ]

    spec = MlpSpec(in_features=2, steps=relus(MAX_STEPS))
    assert spec.layers is None
    assert spec.summary() == f"2 -> {MAX_STEPS} x [relu]"
    with pytest.raises(ValidationError, match=f"at most {MAX_STEPS}"):
        MlpSpec(in_features=2, steps=relus(MAX_STEPS + 1))
