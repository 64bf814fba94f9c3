# SPDX-License-Identifier: Apache-2.0
"""A two-tower model, cut in two: what the towers answer, multiplied and summed, is what the model answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fused_mlp
from fused_mlp.models import Mlp, ModelLoadError
from fused_mlp.models.program.evaluation import evaluate

Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SCORES: dict[str, Score] = {
    "sum": lambda u, v: (u * v).sum(-1),
    "cosine": functional.cosine_similarity,
    "scaled": lambda u, v: (
        (functional.normalize(u, dim=1) * functional.normalize(v, dim=1)).sum(-1, keepdim=True) * 20
    ),
    "bmm": lambda u, v: torch.bmm(u.unsqueeze(1), v.unsqueeze(2)).squeeze(),
    "einsum": lambda u, v: torch.einsum("bd,bd->b", u, v),
}
GIVEN = {"user": np.array([1, 2, 3]), "item": np.array([4, 5, 6]), "x": np.eye(3, dtype=np.float32)}


class TwoTower(nn.Module):
    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score
        self.users, self.items = nn.Embedding(100, 16), nn.Embedding(50, 16)
        self.user = nn.Sequential(nn.Linear(19, 32), nn.ReLU(), nn.Linear(32, 8))
        self.item = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, user: torch.Tensor, item: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.score(self.user(torch.cat([self.users(user), x], 1)), self.item(self.items(item)))


def answer(mlp: Mlp) -> np.ndarray:
    names = [each.name for each in mlp.spec.inputs]
    return evaluate(mlp, mlp.spec.pack({name: GIVEN[name] for name in names}).astype(np.float64))


def read(score: Score) -> Mlp:
    example = {"user": torch.tensor([1]), "item": torch.tensor([2]), "x": torch.zeros(1, 3)}
    return fused_mlp.from_torch(TwoTower(score), example=example)


@pytest.mark.parametrize("score", SCORES)
def test_the_towers_multiplied_are_the_score(score: str) -> None:
    mlp = read(SCORES[score])
    towers = fused_mlp.split(mlp)
    assert {each.name for each in towers.first.spec.inputs} == {"user", "x"}
    assert {each.name for each in towers.second.spec.inputs} == {"item"}
    product = (answer(towers.first) * answer(towers.second)).sum(1)
    np.testing.assert_allclose(product, answer(mlp).reshape(-1), rtol=1e-6, atol=1e-6)


def test_what_follows_the_product_is_in_neither() -> None:
    mlp = read(lambda u, v: torch.sigmoid((u * v).sum(-1)))
    towers = fused_mlp.split(mlp)
    product = (answer(towers.first) * answer(towers.second)).sum(1)
    np.testing.assert_allclose(1 / (1 + np.exp(-product)), answer(mlp).reshape(-1), rtol=1e-6)


def test_a_split_model_is_saved_and_loaded(tmp_path: Path) -> None:
    towers = fused_mlp.split(read(SCORES["cosine"]))
    fused_mlp.save(towers.first, tmp_path / "users" / "1")
    np.testing.assert_array_equal(answer(fused_mlp.load(tmp_path / "users" / "1")), answer(towers.first))


def test_a_model_of_one_tower_is_refused() -> None:
    example = torch.zeros(1, 4)
    mlp = fused_mlp.from_torch(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), example=example)
    with pytest.raises(
        ModelLoadError, match="expected a score that is a dot product or a cosine of two vectors, got"
    ):
        fused_mlp.split(mlp)
