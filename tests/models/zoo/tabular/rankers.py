# SPDX-License-Identifier: Apache-2.0
"""Rankers and tabular models as people write them in PyTorch: ids, tables, bags and floats, in several inputs."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ROWS = 24
Ranker = tuple[nn.Module, dict[str, Tensor]]


def ids(size: int, *shape: int) -> Tensor:
    found = torch.randint(0, size, (ROWS, *shape))
    found.view(ROWS, -1)[:2] = torch.tensor([[0], [size - 1]])
    return found


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Ncf(nn.Module):
    """Neural collaborative filtering: a product of two factors beside an MLP of two others."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(50, 8), nn.Embedding(70, 8)
        self.user_mlp, self.item_mlp = nn.Embedding(50, 6), nn.Embedding(70, 6)
        self.tower, self.last = mlp(12, 16, 8), nn.Linear(16, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        product = self.user(user) * self.item(item)
        deep = self.tower(torch.cat([self.user_mlp(user), self.item_mlp(item)], dim=-1))
        return torch.sigmoid(self.last(torch.cat([product, deep], dim=-1))).squeeze(-1)


class TwoTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(50, 8), nn.Embedding(70, 8)
        self.left, self.right = mlp(11, 16, 8), mlp(8, 16, 8)

    def forward(self, user: Tensor, age: Tensor, item: Tensor) -> Tensor:
        left = nn.functional.normalize(self.left(torch.cat([self.user(user), age], dim=1)), dim=1)
        right = nn.functional.normalize(self.right(self.item(item)), dim=1)
        return (left * right).sum(dim=1, keepdim=True) / 0.1


class Cosine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.document = mlp(6, 16, 8), mlp(5, 16, 8)

    def forward(self, query: Tensor, document: Tensor) -> Tensor:
        return nn.functional.cosine_similarity(self.query(query), self.document(document))


class WideAndDeep(nn.Module):
    """One matrix of ids, a table for each column."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 4) for size in (10, 20, 30))
        self.wide = nn.ModuleList(nn.Embedding(size, 1) for size in (10, 20, 30))
        self.norm, self.deep = nn.BatchNorm1d(5), mlp(17, 16, 1)

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        parts = [table(categories[:, at]) for at, table in enumerate(self.tables)]
        deep = self.deep(torch.cat([*parts, self.norm(numbers)], dim=1))
        return torch.sigmoid(deep + sum(table(categories[:, at]) for at, table in enumerate(self.wide)))


class OneTableWithOffsets(nn.Module):
    """All columns of ids in one table, as in torchfm."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.bias = nn.Embedding(60, 5), nn.Embedding(60, 1)
        self.register_buffer("offsets", torch.tensor([0, 10, 30]))
        self.deep = mlp(15, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.offsets.unsqueeze(0)
        vectors = self.table(x)
        pairs = 0.5 * (vectors.sum(dim=1) ** 2 - (vectors**2).sum(dim=1)).sum(dim=1, keepdim=True)
        return torch.sigmoid(self.bias(x).sum(dim=1) + pairs + self.deep(vectors.flatten(1)))


class Dlrm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 8) for size in (10, 20, 30))
        self.bottom, self.top = mlp(5, 16, 8), mlp(14, 16, 1)
        self.register_buffer("first", torch.tensor([1, 2, 2, 3, 3, 3]))
        self.register_buffer("second", torch.tensor([0, 0, 1, 0, 1, 2]))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        vectors = torch.stack([x, *(table(sparse[:, at]) for at, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return torch.sigmoid(self.top(torch.cat([x, products[:, self.first, self.second]], dim=1)))


class CrossNetwork(nn.Module):
    """DCN-v2."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 6)
        self.cross = nn.ModuleList(nn.Linear(10, 10) for _ in range(2))
        self.deep = mlp(20, 16, 1)

    def forward(self, item: Tensor, numbers: Tensor) -> Tensor:
        start = torch.cat([self.table(item), numbers], dim=1)
        x = start
        for layer in self.cross:
            x = start * layer(x) + x
        return self.deep(torch.cat([start, x], dim=1))


class History(nn.Module):
    """The mean of what a user bought, without the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.deep = nn.Embedding(40, 6, padding_idx=0), mlp(12, 16, 1)

    def forward(self, bought: Tensor, item: Tensor) -> Tensor:
        mask = (bought != 0).unsqueeze(-1).float()
        mean = (self.table(bought) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
        return self.deep(torch.cat([mean, self.table(item)], dim=1))


class SumOfBag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.deep = nn.Embedding(40, 6), mlp(9, 16, 2)

    def forward(self, tags: Tensor, numbers: Tensor) -> Tensor:
        return self.deep(torch.cat([self.table(tags).sum(dim=1), numbers], dim=1)).log_softmax(dim=1)


class BestOfBag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.deep = nn.Embedding(40, 6), mlp(6, 16, 2)

    def forward(self, tags: Tensor) -> Tensor:
        return self.deep(self.table(tags).max(dim=1).values)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.deep = nn.EmbeddingBag(40, 6, mode="mean"), mlp(6, 16, 1)

    def forward(self, tags: Tensor) -> Tensor:
        return self.deep(self.table(tags))


class Hashed(nn.Module):
    """Ids of any size, hashed into a table, and the hour of a time."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.hour, self.deep = nn.Embedding(32, 6), nn.Embedding(24, 3), mlp(9, 16, 1)

    def forward(self, device: Tensor, time: Tensor) -> Tensor:
        hour = torch.div(time, 3600, rounding_mode="floor") % 24
        return self.deep(torch.cat([self.table(device % 32), self.hour(hour)], dim=1))


class Age(nn.Module):
    """Seconds since a start, which float32 cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = mlp(3, 16, 1)

    def forward(self, time: Tensor, numbers: Tensor) -> Tensor:
        age = (time - 1_700_000_000).float().unsqueeze(1) / 3600
        return self.deep(torch.cat([age, numbers], dim=1))


class Clamped(nn.Module):
    """An id beyond the table is that of its last row."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.deep = nn.Embedding(10, 6), mlp(6, 16, 1)

    def forward(self, item: Tensor) -> Tensor:
        return self.deep(self.table(item.clamp(0, 9)))


class OneHot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.deep = mlp(13, 16, 3)

    def forward(self, numbers: Tensor, day: Tensor) -> Tensor:
        return self.deep(torch.cat([numbers, nn.functional.one_hot(day, 7).float()], dim=1))


class Critic(nn.Module):
    """Two Q functions of an observation and an action."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mlp(8, 16, 1), mlp(8, 16, 1)

    def forward(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([observation, action], dim=1)
        return self.first(both), self.second(both)


class Experts(nn.Module):
    """MMoE: a mixture of experts for each of two tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 6)
        self.experts = nn.ModuleList(mlp(10, 8) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(10, 3) for _ in range(2))
        self.towers = nn.ModuleList(mlp(8, 8, 1) for _ in range(2))

    def forward(self, item: Tensor, numbers: Tensor) -> tuple[Tensor, ...]:
        x = torch.cat([self.table(item), numbers], dim=1)
        experts = torch.stack([expert(x) for expert in self.experts], dim=1)
        answers = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            mixed = torch.bmm(torch.softmax(gate(x), dim=1).unsqueeze(1), experts).squeeze(1)
            answers.append(torch.sigmoid(tower(mixed)))
        return tuple(answers)


class Imputed(nn.Module):
    """Missing numbers become their mean, and a flag says so."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([1.0, 2.0, 3.0]))
        self.deep = mlp(6, 16, 1)

    def forward(self, numbers: Tensor) -> Tensor:
        missing = torch.isnan(numbers)
        return self.deep(torch.cat([torch.where(missing, self.mean, numbers), missing.float()], dim=1))


class Buckets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.tensor([18.0, 30.0, 45.0, 60.0]))
        self.table, self.deep = nn.Embedding(5, 4), mlp(7, 16, 1)

    def forward(self, age: Tensor, numbers: Tensor) -> Tensor:
        bucket = (age.unsqueeze(-1) > self.edges).sum(dim=-1)
        return self.deep(torch.cat([self.table(bucket), numbers], dim=1))


class Flags(nn.Module):
    """Flags, and a choice between two answers."""

    def __init__(self) -> None:
        super().__init__()
        self.old, self.new = mlp(4, 8, 2), mlp(4, 8, 2)

    def forward(self, numbers: Tensor, known: Tensor) -> Tensor:
        return torch.where(known.unsqueeze(1), self.old(numbers), self.new(numbers))


class PerItemHead(nn.Module):
    """The row's own id picks its answer among those of all."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = mlp(4, 8, 6)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        return self.deep(state).gather(1, action.unsqueeze(1)).squeeze(1)


def _ranker(module: nn.Module, **inputs: Tensor) -> Callable[[], Ranker]:
    return lambda: (module.eval(), inputs)


def _made() -> dict[str, Callable[[], Ranker]]:
    torch.manual_seed(0)

    def numbers(width: int) -> Tensor:
        return torch.randn(ROWS, width)

    with_gaps = numbers(3)
    with_gaps[::3, 1] = torch.nan
    return {
        "ncf": _ranker(Ncf(), user=ids(50), item=ids(70)),
        "two towers": _ranker(TwoTower(), user=ids(50), age=numbers(3), item=ids(70)),
        "cosine of two towers": _ranker(Cosine(), query=numbers(6), document=numbers(5)),
        "wide and deep": _ranker(WideAndDeep(), categories=ids(10, 3), numbers=numbers(5)),
        "factorisation machine": _ranker(OneTableWithOffsets(), x=ids(10, 3)),
        "dlrm": _ranker(Dlrm(), dense=numbers(5), sparse=ids(10, 3)),
        "cross network": _ranker(CrossNetwork(), item=ids(40), numbers=numbers(4)),
        "history": _ranker(History(), bought=ids(40, 6), item=ids(40)),
        "sum of a bag": _ranker(SumOfBag(), tags=ids(40, 6), numbers=numbers(3)),
        "maximum of a bag": _ranker(BestOfBag(), tags=ids(40, 6)),
        "embedding bag": _ranker(Bag(), tags=ids(40, 6)),
        "hashed ids and hours": _ranker(Hashed(), device=ids(1 << 40), time=1_700_000_000 + ids(1 << 20)),
        "age of a time": _ranker(Age(), time=1_700_000_000 + ids(1 << 20), numbers=numbers(2)),
        "clamped ids": _ranker(Clamped(), item=ids(30) - 5),
        "one-hot": _ranker(OneHot(), numbers=numbers(6), day=ids(7)),
        "critic": _ranker(Critic(), observation=numbers(5), action=numbers(3)),
        "experts": _ranker(Experts(), item=ids(40), numbers=numbers(4)),
        "imputed": _ranker(Imputed(), numbers=with_gaps),
        "buckets": _ranker(Buckets(), age=torch.rand(ROWS) * 90, numbers=numbers(3)),
        "flags": _ranker(Flags(), numbers=numbers(4), known=ids(2).bool()),
        "an answer picked by id": _ranker(PerItemHead(), state=numbers(4), action=ids(6)),
    }


RANKERS = _made()


def exported(ranker: Ranker, *, dynamo: bool) -> tuple[Any, dict[str, np.ndarray]]:
    import onnx

    module, inputs = ranker
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporters, about themselves
        path, names = Path(folder) / "m.onnx", list(inputs)
        options: dict[str, Any] = {"dynamo": False, "dynamic_axes": {name: {0: "rows"} for name in names}}
        if dynamo:
            dynamic = {name: {0: torch.export.Dim("rows")} for name in names}
            options = {"dynamo": True, "dynamic_shapes": dynamic, "verbose": False, "external_data": False}
        torch.onnx.export(module, tuple(inputs.values()), path, input_names=names, **options)
        return onnx.load(path), {name: tensor.numpy() for name, tensor in inputs.items()}
