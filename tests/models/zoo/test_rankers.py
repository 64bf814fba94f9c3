# SPDX-License-Identifier: Apache-2.0
"""Rankers and tabular models are taken as they are, and compute what they compute in PyTorch."""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fused_mlp import models
from fused_mlp.models import Mlp, ModelLoadError
from fused_mlp.models.program.evaluation import evaluate
from tests.models.zoo.packages import install_packages, stand_ins
from tests.models.zoo.rankers import RANKERS, Ranker

# Packages that import much more than their models use.
LARGE = ("fastai", "pytorch_tabular", "pytorch_widedeep")


@cache
def made(entry: Ranker) -> tuple[nn.Module, Any]:
    if entry.package and (problem := install_packages()) is not None:
        pytest.skip(problem)
    torch.manual_seed(0)
    with warnings.catch_warnings(), stand_ins() if entry.package in LARGE else nullcontext():
        warnings.simplefilter("ignore")  # of packages that we did not write
        module, example = entry.make()
    for part in module.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):  # some begin near 0, which would hide a mistake
            nn.init.normal_(part.weight)
    return module.eval(), example


@cache
def imported(entry: Ranker) -> Mlp | ModelLoadError:
    module, example = made(entry)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return models.from_torch(module, example=example)
    except ModelLoadError as error:
        return error


def answer(module: nn.Module, example: Any) -> np.ndarray:
    """All outputs side by side, in float32 as the module is."""
    with torch.inference_mode():
        if isinstance(example, tuple):
            found = module(*example)
        elif isinstance(example, dict) and "obs" in example:
            found = module(**example)
        else:
            try:
                found = module(example)
            except (TypeError, AttributeError):
                found = module(**example)
    leaves = [each for each in tree_leaves(found) if isinstance(each, Tensor)]
    return torch.cat([each.reshape(len(each), -1).double() for each in leaves], 1).numpy()


def record(mlp: Mlp, example: Any) -> np.ndarray:
    tensors = [each.numpy() for each in tree_leaves(tree_map(lambda each: each, example))]
    if mlp.spec.inputs is None:
        return tensors[0].reshape(len(tensors[0]), -1).astype(np.float64)
    parts = [each.pack(given) for each, given in zip(mlp.spec.inputs, tensors, strict=True)]
    return np.concatenate(parts, axis=1).astype(np.float64)


@pytest.mark.parametrize("entry", [each for each in RANKERS if not each.refused], ids=lambda each: each.name)
def test_a_ranker_is_taken_as_it_is_and_computes_the_same(entry):
    mlp = imported(entry)
    if isinstance(mlp, ModelLoadError):
        raise mlp
    module, example = made(entry)
    expected = answer(module, example)
    # The module computes in float32, and so are the tensors, once they are folded.
    got = evaluate(mlp, record(mlp, example))
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize("entry", [each for each in RANKERS if each.refused], ids=lambda each: each.name)
def test_what_is_no_mlp_is_refused_in_one_line(entry):
    error = imported(entry)
    assert isinstance(error, ModelLoadError), f"taken: {error}"
    assert entry.refused in str(error)
    assert "\n" not in str(error)


def test_most_models_are_taken():
    assert len(RANKERS) >= 45
    assert sum(not each.refused for each in RANKERS) >= 0.85 * len(RANKERS)


def test_outer_products_of_many_fields_are_put_in_order_before_they_are_computed():
    if (problem := install_packages()) is not None:
        pytest.skip(problem)
    kind = import_module("torchfm.model.xdfm").ExtremeDeepFactorizationMachineModel
    module = kind([100] * 26, 16, (64,), 0.1, (16, 16)).eval()
    mlp = models.from_torch(module, example=torch.zeros(1, 26, dtype=torch.int64))
    widest = max(math.prod(shape) for name, shape in mlp.spec.shapes())
    assert widest < 1 << 18  # no matrix of zeros and ones over all products


def test_the_table_of_the_readme_has_every_model():
    lines = (Path(__file__).parent / "README.md").read_text().splitlines()
    for entry in RANKERS:
        outcome = f"refused: {entry.refused}" if entry.refused else "taken"
        assert any(line.startswith(f"| {entry.name} |") and f"| {outcome} |" in line for line in lines), (
            entry.name
        )
