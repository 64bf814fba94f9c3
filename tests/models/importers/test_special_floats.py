# SPDX-License-Identifier: Apache-2.0
"""Rows with NaN or infinity: what the model answers with finite numbers, the program answers alike, and such a value
reaches no answer that it does not reach in the model."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from fused_mlp import kernels, models
from fused_mlp.models.program.evaluation import evaluate
from tests.models.importers.test_named_inputs import written

GRID = torch.linspace(-1, 1, 5)
ROWS = torch.tensor([
    [0.3, -0.2, 0.7], [torch.nan, 0.2, 0.3], [0.2, torch.nan, 0.3], [0.2, 0.3, torch.nan],
    [torch.inf, 0.2, 0.3], [0.2, -torch.inf, 0.3], [torch.nan, torch.inf, -torch.inf],
])  # fmt: skip


def assert_same(module, mlp, rows=ROWS):
    """By numpy, by the kernel, and by the module that `to_torch` writes."""
    with torch.inference_mode():
        expected = module(rows).numpy()
        written_out = mlp.to_torch()(rows).numpy()
    finite = np.isfinite(expected)
    assert finite.any()
    for got in (evaluate(mlp, rows.double().numpy()), kernels.compile(mlp)(rows.numpy()), written_out):
        np.testing.assert_allclose(np.asarray(got)[finite], expected[finite], rtol=1e-4, atol=1e-5)


FORWARDS = {
    "a grid": lambda self, x: self.wide((x.unsqueeze(-1) >= GRID[:-1]).float().flatten(1)),
    "bins": lambda self, x: self.wide(
        torch.logical_and(x.unsqueeze(-1) >= GRID[:-1], x.unsqueeze(-1) < GRID[1:]).float().flatten(1)
    ),
    "sigmoids of features": lambda self, x: self.wide(
        torch.sigmoid(x.unsqueeze(-1) * GRID[:-1]).nan_to_num(0.5).flatten(1)
    ),
    "a threshold for each": lambda self, x: self.fc((x > GRID[1:4]).float()),
    "sums of groups": lambda self, x: (torch.cat([x, x.abs()], 1).view(-1, 3, 2).sum(2) > 0).float(),
    "a feature that is not used": lambda self, x: self.narrow(x[:, [2, 0]]),
    "an order": lambda self, x: (x[:, [2, 0, 1, 1]] > 0).float(),
    "a mask": lambda self, x: self.fc(torch.where(torch.tensor([True, False, True]), x, 0.5)),
    "a step after a sum": lambda self, x: (self.fc(x[:, 1:].repeat(1, 2)[:, :3]) <= 0).float(),
    "a constant beside": lambda self, x: torch.cat([x[:, 1:], torch.ones(1, 2).expand(x.shape[0], 2)], 1),
    "torch.threshold": lambda self, x: nn.functional.threshold(x, 0.1, 0.5).nan_to_num(3.0),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_nan_and_infinity_stay_in_their_feature(name):
    module = written(FORWARDS[name], wide=nn.Linear(12, 1), narrow=nn.Linear(2, 1))
    assert_same(module, models.from_torch(module, in_features=3))


@pytest.mark.parametrize("function", [torch.fmax, torch.fmin])
@pytest.mark.parametrize("other", [torch.zeros(3), torch.tensor([0.1, 0.2, 0.3]), torch.tensor(0.0)])
def test_fmax_and_fmin_with_a_constant_prefer_numbers_to_nan(function, other):
    module = written(lambda self, x: self.fc(function(x, other)))
    assert_same(module, models.from_torch(module, in_features=3))
    with_parameter = written(lambda self, x: self.fc(function(self.floor, x)), floor=nn.Parameter(other))
    assert_same(with_parameter, models.from_torch(with_parameter, in_features=3))


def test_an_onnx_graph_keeps_them_apart_too(tmp_path):
    module = written(FORWARDS["a grid"], wide=nn.Linear(12, 1)).eval()
    path = tmp_path / "grid.onnx"
    rows = {"input_names": ["x"], "dynamic_axes": {"x": {0: "rows"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (ROWS,), path, dynamo=False, **rows)
    assert_same(module, models.from_onnx(path))


def test_other_models_keep_their_products():
    """A model that answers NaN with NaN anyway is read into as few steps as before."""
    module = written(
        lambda self, x: self.wide((x.unsqueeze(-1) * GRID[:-1] + 1).relu().flatten(1)), wide=nn.Linear(12, 1)
    )
    mlp = models.from_torch(module, in_features=3)
    assert [step.op for step in mlp.spec.steps] == ["linear", "elementwise", "linear"]
