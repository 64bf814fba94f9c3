# SPDX-License-Identifier: Apache-2.0
"""What is taken computes what its source does: far out, for one row as for many, the second time as the first."""

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from onnx import TensorProto, helper
from torch import nn

from fused_mlp import models
from fused_mlp.models import ModelLoadError
from fused_mlp.models.program.evaluation import evaluate


def written(forward, *, width=4):
    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(width, 3)
            self.log_std = nn.Parameter(torch.tensor([0.5, -1.0, 0.25]))
            self.register_buffer("seen", torch.zeros(1))
            self.calls = 0

    Written.forward = forward
    torch.manual_seed(0)
    return Written()


def answers(module, rows):
    """Of the program and of the module, in float64: (rows, n)."""
    mlp = models.from_torch(module)
    x = torch.tensor(rows, dtype=torch.float64)
    with torch.no_grad():
        expected = module.double()(x)
    if isinstance(expected, tuple):
        expected = torch.cat(expected, 1)
    return evaluate(mlp, x.numpy()), expected.detach().reshape(len(x), -1).numpy()


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: torch.where(x > 0.5, x, 0.5), "maximum(x, 0.5)"),
        (lambda x: torch.where(x < -2.5, x, -2.5), "minimum(x, -2.5)"),
        (lambda x: F.threshold(x, 0.5, 0.5), "maximum(x, 0.5)"),
        (lambda x: torch.where(x > 0, x, x / 3), f"leaky_relu(x, {1 / 3!r})"),
    ],
)
def test_conditions_are_the_function_that_they_spell_at_any_size(function, text):
    module = written(lambda self, x: function(self.fc(x)))
    assert [getattr(step, "function", "") for step in models.from_torch(module).spec.steps] == ["", text]
    got, expected = answers(module, [[1e9, 1, 1, 1], [-1e9, 1, 1, 1], [0.1, 0.2, 0.3, 0.4]])
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_conditions_of_onnx_are_the_function_that_they_spell(tmp_path):
    def rows(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 2])

    limit = helper.make_tensor("limit", TensorProto.FLOAT, [], [0.5])
    nodes = [
        helper.make_node("Greater", ["x", "limit"], ["above"]),
        helper.make_node("Where", ["above", "x", "limit"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [rows("x")], [rows("y")], [limit])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    (step,) = models.from_onnx(tmp_path / "m.onnx").spec.steps
    assert step.function == "maximum(x, 0.5)"


def test_a_limit_far_out_is_read_as_one():
    module = written(lambda self, x: torch.where(self.fc(x) > 1e7, 1e7, self.fc(x)))
    mlp = models.from_torch(module)
    rows = np.random.default_rng(0).normal(0, 1e8, (20, 4))
    _, expected = answers(module, rows.tolist())
    assert (expected == 1e7).any()
    np.testing.assert_allclose(evaluate(mlp, rows), expected, rtol=1e-6)


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_log_sum_exp_does_not_cancel(width):
    module = nn.Sequential(nn.Linear(width, width, bias=False))
    nn.init.eye_(module[0].weight)
    module.forward = lambda x, inner=module[0]: torch.logsumexp(inner(x), -1, keepdim=True)
    rows = np.random.default_rng(0).normal(0, 1, (4, width))
    rows[0] = [-1e9] * (width - 1) + [0.5]
    rows[1] = [1e9] + [0.5] * (width - 1)
    _, expected = answers(module, rows.tolist())
    got = evaluate(models.from_torch(module.float()), rows.astype(np.float32))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def picking(order, function=None):
    class Picking(nn.Module):
        def forward(self, x):
            return x[:, order] if function is None else function(x)[:, order]

    return Picking()


def test_a_nan_stays_in_the_features_that_it_is_in():
    """As in torch: what is put in another order is not multiplied by zero."""
    generator = np.random.default_rng(0)
    for count in (5, 16, 64):
        order = generator.permutation(64)[:count]
        mlp = models.from_torch(picking(order), in_features=64)
        assert {step.op for step in mlp.spec.steps} == {"slice", "concat"}
        x = generator.normal(0, 1, (64, 64))
        x[np.arange(64), np.arange(64)] = np.nan
        np.testing.assert_array_equal(evaluate(mlp, x), x[:, order])


@pytest.mark.parametrize("function", [None, torch.tanh])
@pytest.mark.parametrize("width", [12, 300])
def test_another_order_after_a_product_is_one_of_its_weight(function, width):
    order = torch.randperm(width, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, width), picking(order, function))
    mlp = models.from_torch(module)
    assert [step.op for step in mlp.spec.steps] == ["linear"] + ["elementwise"] * (function is not None)
    got, expected = answers(module, [[1, 2, 3, 4], [-1, 5, 2, 2]])
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_limits_of_their_own_are_exact_for_each_feature():
    low, high = torch.tensor([-1e9, -1.0, 0.5]), torch.tensor([1e9, 1e-3, 1e9])
    module = written(lambda self, x: self.fc(x).clamp(low.to(x.dtype), high.to(x.dtype)))
    mlp = models.from_torch(module)
    x = np.random.default_rng(0).normal(0, 1e-3, (20, 4)).astype(np.float32)
    with torch.no_grad():
        expected = module.double()(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(evaluate(mlp, x), expected, rtol=1e-5)


def one_row_is_different(self, x):
    y = self.fc(x)
    return y * 2 if x.shape[0] == 1 else y


def few_rows_are_different(self, x):
    y = self.fc(x)
    return y * 2 if x.shape[0] < 4 else y


def counts_in_a_buffer(self, x):
    self.seen += 1
    return self.fc(x)


def counts_in_python(self, x):
    self.calls += 1
    return self.fc(x) * self.calls


@pytest.mark.parametrize(
    ("forward", "text"),
    [
        (one_row_is_different, r"a row's output changes with the batch size \(1 vs"),
        (few_rows_are_different, "rows"),
        (counts_in_a_buffer, "it writes to its buffer 'seen'"),
        (counts_in_python, "outputs for the same rows differ between calls"),
    ],
)
def test_what_depends_on_more_than_the_row_is_refused(forward, text):
    with pytest.raises(ModelLoadError, match=text):
        models.from_torch(written(forward))


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: (self.fc(x), self.log_std.expand_as(self.fc(x))),
        lambda self, x: (self.fc(x), self.log_std.exp().expand(x.shape[0], 3)),
        lambda self, x: (self.fc(x), torch.full((x.shape[0], 2), 3.0)),
    ],
)
def test_an_output_may_be_the_same_for_all_rows(forward):
    module = written(forward)
    got, expected = answers(module, [[1, 2, 3, 4], [0, 0, 0, 0], [-1, 5, 2, 2]])
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_outputs_without_rows_are_refused_with_a_remedy():
    with pytest.raises(ModelLoadError, match=r"'output_1' does not depend on the input.*\.expand\("):
        models.from_torch(written(lambda self, x: (self.fc(x), self.log_std)))
    with pytest.raises(ModelLoadError, match="no output depends on the input"):
        models.from_torch(written(lambda self, x: self.log_std.expand_as(self.fc(x))))
