"""The spec: one way to write each model down."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fused_mlp.models import LayerSpec, LayerWeights, Mlp, MlpSpec, ModelLoadError


def spec(*layers, **fields):
    return MlpSpec(in_features=2, layers=layers or (LayerSpec(out_features=3),), **fields)


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
        (lambda: MlpSpec(in_features=2, layers=()), "at least 1"),
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
