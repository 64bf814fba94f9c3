# SPDX-License-Identifier: Apache-2.0
"""`Mlp.to_torch` of programs that are no chain: the module a person would write, with the names of the steps."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.importers.torch.modules import function_module
from fused_mlp.models.importers.torch.writing import make_module
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.formula import PARAMETERS, SUGAR, parse
from fused_mlp.models.program.spec import (
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

ROWS = 5


def random_mlp(spec: MlpSpec) -> Mlp:
    generator = np.random.default_rng(0)
    return Mlp(spec, {name: generator.standard_normal(shape) for name, shape in spec.shapes()})


def every_step() -> Mlp:
    """Every kind of step, a matrix that is used twice, names that no attribute can have."""
    steps = (
        Linear(name="blocks.0.fc1", input="input", out_features=8),
        Elementwise(name="blocks.0.fc1.act", input="blocks.0.fc1", function="x * sigmoid(1.5 * x)"),
        Norm(name="blocks.0.norm", input="blocks.0.fc1.act", kind="layer"),
        Norm(name="in", input="blocks.0.norm", kind="rms"),
        Norm(name="train", input="in", kind="l2", eps=1e-12, weight=False, bias=False),
        Gated(name="gate", input="train", out_features=8, function="silu"),
        Combine(op="add", name="sum", inputs=("gate", "in")),
        Slice(name="part", input="sum", start=1, stop=7),
        Linear(name="again", weights="blocks.0.fc1", input="part", out_features=8),
        Combine(op="maximum", name="most", inputs=("again", "sum")),
        Concat(name="skip", inputs=("most", "input")),
        Affine(name="scale", input="skip"),
        Softmax(op="log_softmax", name="policy/log:softmax-1", input="scale"),
        Linear(name="v", input="skip", out_features=1),
    )
    outputs = (Output(name="pi", value="policy/log:softmax-1"), Output(name="v", value="v", squeeze=True))
    return random_mlp(MlpSpec(in_features=6, steps=steps, outputs=outputs))


def float64_of(mlp: Mlp, module: nn.Module) -> tuple[np.ndarray, torch.Tensor | tuple[torch.Tensor, ...]]:
    x = torch.randn(ROWS, mlp.spec.in_features, dtype=torch.float64)
    with torch.inference_mode():
        return evaluate(mlp, x.numpy()), module.double()(x)


def test_every_step_computes_what_the_reference_does() -> None:
    mlp = every_step()
    expected, (policy, value) = float64_of(mlp, mlp.to_torch())
    assert value.shape == (ROWS,)  # it is squeezed
    np.testing.assert_allclose(policy, expected[:, mlp.spec.columns("pi")], atol=1e-12)
    np.testing.assert_allclose(value, expected[:, -1], atol=1e-12)
    expected, joined = float64_of(mlp, make_module(mlp, joined=True))
    np.testing.assert_allclose(joined, expected, atol=1e-12)


def test_tensors_keep_their_names() -> None:
    mlp = every_step()
    module = mlp.to_torch()
    state = module.state_dict()
    for name, tensor in mlp.tensors().items():
        if not name.startswith(("gate.", "in.")):  # two nn.Linear; a word of Python
            np.testing.assert_array_equal(state[name], tensor)
    assert len(state) == len(mlp.tensors())
    assert isinstance(module.get_submodule("blocks.0.fc1"), nn.Linear)
    assert isinstance(module.get_submodule("blocks.0.norm"), nn.LayerNorm)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_it_can_be_copied_and_pickled(again) -> None:
    module = every_step().to_torch()
    x = torch.randn(ROWS, 6)
    for got, expected in zip(again(module)(x), module(x), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("kind", ["layer", "rms", "l2"])
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_norms(kind, weight, bias) -> None:
    steps = (Norm(name="norm", input="input", kind=kind, weight=weight, bias=bias, eps=0.01),)
    mlp = random_mlp(MlpSpec(in_features=7, steps=steps))
    expected, got = float64_of(mlp, mlp.to_torch())
    np.testing.assert_allclose(got, expected, atol=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        *(name for name in (*PARAMETERS, *SUGAR) if name != "clip"),
        "clip(x, -2, 0.5)",
        "clip(x, 1, 1)",
        "leaky_relu(x, -0.3)",
        "elu(x, 2)",
        "softplus(x, 2, 1)",
        "celu(x, 2)",
        "maximum(0.5, minimum(x, 1))",
    ],
)
def test_functions(text) -> None:
    x = torch.linspace(0.01, 30, 500, dtype=torch.float64)
    if text not in ("log", "log1p", "sqrt"):
        x = torch.cat([-x, x])
    np.testing.assert_allclose(
        function_module(parse(text))(x), parse(text)(x.numpy()), atol=1e-12, rtol=1e-12
    )


def test_a_chain_flattens_and_squeezes_as_the_model_did() -> None:
    steps = (Linear(name="fc", input="input", out_features=1),)
    outputs = (Output(value="fc", squeeze=True),)
    mlp = random_mlp(MlpSpec(in_features=6, input_shape=(2, 3), steps=steps, outputs=outputs))
    module = mlp.to_torch()
    assert isinstance(module, nn.Sequential)
    x = torch.randn(ROWS, 2, 3)
    expected = evaluate(mlp, x.flatten(1).double().numpy())[:, 0]
    np.testing.assert_allclose(module(x), expected, rtol=1e-5)
