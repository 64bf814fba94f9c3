# SPDX-License-Identifier: Apache-2.0
"""Rankers and tabular models: those of public packages as they are, and architectures of papers that no light package
has, in our own words. Each is a module and an example of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import Tensor, nn

Made = tuple[nn.Module, Any]


@dataclass(frozen=True)
class Ranker:
    """`package`: where it comes from, "" for our own words. `refused`: words of the refusal."""

    name: str
    package: str
    make: Callable[[], Made]
    refused: str = ""


RANKERS: list[Ranker] = []


def ranker(package: str = "", name: str = "", refused: str = "") -> Callable[[Callable[[], Made]], Any]:
    def add(make: Callable[[], Made]) -> Callable[[], Made]:
        RANKERS.append(Ranker(name or make.__name__, package, make, refused))
        return make

    return add


def ids(*sizes: int, rows: int = 4) -> Tensor:
    """(rows, ids): one for each table of these sizes."""
    generator = torch.Generator().manual_seed(2)
    return torch.stack([torch.randint(size, (rows,), generator=generator) for size in sizes], 1)


def floats(*shape: int, rows: int = 4) -> Tensor:
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(3))


# torchfm: one tensor of ids, to which an offset is added for each field.

_FIELDS = (7, 11, 5, 13)


def _torchfm(path: str, *arguments: Any, **options: Any) -> Made:
    module, _, kind = path.rpartition(".")
    return getattr(import_module(f"torchfm.model.{module}"), kind)(_FIELDS, *arguments, **options), ids(
        *_FIELDS
    )


for _path, _arguments, _options in (
    ("lr.LogisticRegressionModel", (), {}),
    ("fm.FactorizationMachineModel", (6,), {}),
    ("ffm.FieldAwareFactorizationMachineModel", (4,), {}),
    ("nfm.NeuralFactorizationMachineModel", (6, (16,), (0.1, 0.1)), {}),
    ("fnn.FactorizationSupportedNeuralNetworkModel", (6, (16, 8), 0.1), {}),
    ("wd.WideAndDeepModel", (6, (16, 8), 0.1), {}),
    ("pnn.ProductNeuralNetworkModel", (6, (16,), 0.1), {"method": "inner"}),
    ("dcn.DeepCrossNetworkModel", (6, 2, (16,), 0.1), {}),
    ("dfm.DeepFactorizationMachineModel", (6, (16,), 0.1), {}),
    ("xdfm.ExtremeDeepFactorizationMachineModel", (6, (16,), 0.1, (8, 8)), {}),
    ("fnfm.FieldAwareNeuralFactorizationMachineModel", (4, (16,), (0.1, 0.1)), {}),
    ("afn.AdaptiveFactorizationNetwork", (6, 9, (16,), (0.1, 0.1)), {}),
):
    RANKERS.append(
        Ranker(
            f"torchfm {_path.rpartition('.')[2]}",
            "torchfm",
            lambda path=_path, arguments=_arguments, options=_options: _torchfm(path, *arguments, **options),
        )
    )


@ranker("torchfm", "torchfm NeuralCollaborativeFiltering")
def torchfm_ncf() -> Made:
    kind = import_module("torchfm.model.ncf").NeuralCollaborativeFiltering
    return kind((50, 40), [0], [1], 8, (16, 8), 0.1), ids(50, 40)


@ranker("torchfm", "torchfm AttentionalFactorizationMachineModel", refused="drops values in eval mode too")
def torchfm_afm() -> Made:
    return _torchfm("afm.AttentionalFactorizationMachineModel", 6, 5, (0.1, 0.1))


@ranker("torchfm", "torchfm AutomaticFeatureInteractionModel", refused="attention")
def torchfm_afi() -> Made:
    return _torchfm("afi.AutomaticFeatureInteractionModel", 8, 8, 2, 2, (16,), (0.1, 0.1, 0.1))


# deepctr-torch: one tensor of floats, in which some columns are ids.


def _deepctr(name: str, *, linear: bool = True, **options: Any) -> Made:
    inputs = import_module("deepctr_torch.inputs")
    columns = [inputs.SparseFeat(f"C{i}", size, embedding_dim=6) for i, size in enumerate(_FIELDS)]
    columns += [inputs.DenseFeat(f"I{i}", 1) for i in range(3)]
    kind = getattr(import_module("deepctr_torch.models"), name)
    given = (columns, columns) if linear else (columns,)
    made = kind(*given, device="cpu", dnn_hidden_units=(16, 8), **options)
    return made, torch.cat([ids(*_FIELDS).float(), floats(3)], 1)


for _name, _linear, _options in (
    ("DeepFM", True, {}),
    ("WDL", True, {}),
    ("DCN", True, {"cross_num": 2}),
    ("DCNMix", True, {"cross_num": 2, "low_rank": 4, "num_experts": 2}),
    ("xDeepFM", True, {"cin_layer_size": (8, 8)}),
    ("NFM", True, {}),
    ("PNN", False, {}),
    ("FiBiNET", True, {}),
    ("IFM", True, {}),
    ("ONN", True, {}),
):
    RANKERS.append(
        Ranker(
            f"deepctr-torch {_name}",
            "deepctr_torch",
            lambda name=_name, linear=_linear, options=_options: _deepctr(name, linear=linear, **options),
        )
    )
for _name in ("MMOE", "SharedBottom", "PLE", "ESMM"):
    RANKERS.append(
        Ranker(
            f"deepctr-torch {_name}",
            "deepctr_torch",
            lambda name=_name: _deepctr_tasks(name),
        )
    )


def _deepctr_tasks(name: str) -> Made:
    inputs = import_module("deepctr_torch.inputs")
    columns = [inputs.SparseFeat(f"C{i}", size, embedding_dim=6) for i, size in enumerate(_FIELDS)]
    columns += [inputs.DenseFeat(f"I{i}", 1) for i in range(3)]
    kind = getattr(import_module("deepctr_torch.models"), name)
    names = {"task_names": ("ctr", "ctcvr")} if name == "ESMM" else {"task_names": ("click", "buy")}
    made = kind(columns, task_types=("binary", "binary"), device="cpu", **names)
    return made, torch.cat([ids(*_FIELDS).float(), floats(3)], 1)


@ranker("deepctr_torch", "deepctr-torch AutoInt", refused="attention")
def deepctr_autoint() -> Made:
    return _deepctr("AutoInt", att_layer_num=2)


# torch-rechub: a dict of ids and floats.


def _rechub(path: str, *arguments: Any, **options: Any) -> Made:
    """`arguments`: "sparse", "dense" and "all" stand for lists of features."""
    features = import_module("torch_rechub.basic.features")
    sparse = [features.SparseFeature(f"c{i}", size, embed_dim=6) for i, size in enumerate(_FIELDS)]
    lists = {"sparse": sparse, "dense": [features.DenseFeature("price")]}
    lists["all"] = [*lists["dense"], *sparse]
    module, _, kind = path.rpartition(".")
    found = getattr(import_module(f"torch_rechub.models.{module}"), kind)
    given = [lists.get(each, each) if isinstance(each, str) else each for each in arguments]
    example = {f"c{i}": column for i, column in enumerate(ids(*_FIELDS).unbind(1))}
    return found(*given, **options), {**example, "price": floats()}


_TOWER = {"dims": [16, 8], "dropout": 0.1, "activation": "relu"}
for _path, _arguments in (
    ("ranking.DeepFM", ("all", "sparse", _TOWER)),
    ("ranking.WideDeep", ("sparse", "all", _TOWER)),
    ("ranking.DCN", ("sparse", 2, _TOWER)),
    ("ranking.DCNv2", ("sparse", 2, _TOWER)),
    ("ranking.FiBiNet", ("sparse", _TOWER)),
    ("multi_task.MMOE", ("sparse", ["classification"] * 2, 3, _TOWER, [_TOWER] * 2)),
    ("multi_task.SharedBottom", ("sparse", ["classification"] * 2, _TOWER, [_TOWER] * 2)),
):
    RANKERS.append(
        Ranker(
            f"torch-rechub {_path.rpartition('.')[2]}",
            "torch_rechub",
            lambda path=_path, arguments=_arguments: _rechub(path, *arguments),
        )
    )


@ranker("torch_rechub", "torch-rechub DSSM")
def rechub_dssm() -> Made:
    features = import_module("torch_rechub.basic.features")
    sparse = [features.SparseFeature(f"c{i}", size, embed_dim=6) for i, size in enumerate(_FIELDS)]
    made = import_module("torch_rechub.models.matching").DSSM(sparse[:2], sparse[2:], _TOWER, _TOWER)
    return made, {f"c{i}": column for i, column in enumerate(ids(*_FIELDS).unbind(1))}


# Tabular packages


@ranker("fastai", "fastai TabularModel")
def fastai_tabular() -> Made:
    kind = import_module("fastai.tabular.model").TabularModel
    return kind([(7, 4), (11, 5), (5, 3)], 3, 2, [16, 8]), (ids(7, 11, 5), floats(3))


@ranker("pytorch_widedeep", "pytorch-widedeep TabMlp")
def widedeep_tabmlp() -> Made:
    columns = {"a": 0, "b": 1, "x": 2, "y": 3}
    kind = import_module("pytorch_widedeep.models").TabMlp
    made = kind(
        columns,
        cat_embed_input=[("a", 7, 4), ("b", 11, 5)],
        continuous_cols=["x", "y"],
        mlp_hidden_dims=[16, 8],
    )
    return made, torch.cat([ids(7, 11).float(), floats(2)], 1)


@ranker("pytorch_widedeep", "pytorch-widedeep Wide")
def widedeep_wide() -> Made:
    return import_module("pytorch_widedeep.models").Wide(30, 1), ids(30, 30, 30).float() + 0.0


@ranker("pytorch_widedeep", "pytorch-widedeep WideDeep")
def widedeep_both() -> Made:
    models = import_module("pytorch_widedeep.models")
    deep, example = widedeep_tabmlp()
    return models.WideDeep(wide=models.Wide(30, 1), deeptabular=deep), {
        "wide": ids(30, 30),
        "deeptabular": example,
    }


@ranker("pytorch_widedeep", "pytorch-widedeep TabResnet")
def widedeep_resnet() -> Made:
    kind = import_module("pytorch_widedeep.models").TabResnet
    columns = {"a": 0, "b": 1, "x": 2, "y": 3}
    made = kind(
        columns,
        cat_embed_input=[("a", 7, 4), ("b", 11, 5)],
        continuous_cols=["x", "y"],
        blocks_dims=[16, 8, 8],
    )
    return made, torch.cat([ids(7, 11).float(), floats(2)], 1)


@ranker("pytorch_tabular", "pytorch_tabular CategoryEmbedding")
def tabular_category_embedding() -> Made:
    layers = import_module("pytorch_tabular.models.common.layers")
    config = import_module("omegaconf").OmegaConf.create(
        {
            "layers": "16-8", "activation": "ReLU", "use_batch_norm": True, "dropout": 0.1, "initialization": "kaiming",
            "embedded_cat_dim": 9, "continuous_dim": 3,
        }
    )  # fmt: skip
    backbone = import_module("pytorch_tabular.models.category_embedding.category_embedding_model")

    class Model(nn.Module):
        """As CategoryEmbeddingModel.forward: embedding, backbone, head."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = layers.Embedding1dLayer(3, [(7, 4), (11, 5)], 0.0, True)
            self.backbone = backbone.CategoryEmbeddingBackbone(config)
            self.head = nn.Linear(8, 1)

        def forward(self, x: dict[str, Tensor]) -> Tensor:
            return self.head(self.backbone(self.embedding(x)))

    return Model(), {"continuous": floats(3), "categorical": ids(7, 11)}


@ranker("tabm", "tabm TabM")
def tabm() -> Made:
    made = import_module("tabm").TabM.make(
        n_num_features=3, cat_cardinalities=[7, 5], d_out=1, k=4, n_blocks=2, d_block=16
    )
    return made, (floats(3), ids(7, 5))


@ranker("rtdl_num_embeddings", "rtdl_num_embeddings PiecewiseLinear")
def rtdl_piecewise() -> Made:
    package = import_module("rtdl_num_embeddings")
    bins = package.compute_bins(torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), n_bins=6)
    made = package.PiecewiseLinearEmbeddings(bins, 4, activation=True, version="B")
    return nn.Sequential(made, nn.Flatten(), nn.Linear(12, 1)), floats(3)


@ranker("rtdl_num_embeddings", "rtdl_num_embeddings PiecewiseLinearEncoding")
def rtdl_encoding() -> Made:
    package = import_module("rtdl_num_embeddings")
    bins = package.compute_bins(torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), n_bins=5)
    encoding = package.PiecewiseLinearEncoding(bins)
    width = encoding(torch.zeros(1, 3)).shape[1]
    return nn.Sequential(encoding, nn.Linear(width, 1)), floats(3)


@ranker("stable_baselines3", "stable-baselines3 critics of TD3 and SAC")
def sb3_critic() -> Made:
    spaces = import_module("gymnasium.spaces")
    layers = import_module("stable_baselines3.common.torch_layers")
    policies = import_module("stable_baselines3.common.policies")
    seen, acts = spaces.Box(-5, 5, (6,)), spaces.Box(-2, 2, (2,))
    made = policies.ContinuousCritic(seen, acts, [16, 16], layers.FlattenExtractor(seen), 6, n_critics=2)
    return made, {"obs": floats(6), "actions": floats(2)}


# In our own words


@ranker()
def two_tower() -> Made:
    class TwoTower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user_emb, self.item_emb = nn.Embedding(50, 8), nn.Embedding(40, 8)
            self.user, self.item = nn.Linear(11, 6), nn.Linear(8, 6)

        def forward(self, user: Tensor, age: Tensor, item: Tensor) -> Tensor:
            left = F.relu(self.user(torch.cat([self.user_emb(user), age], -1)))
            right = F.relu(self.item(self.item_emb(item)))
            return (F.normalize(left, dim=-1) * F.normalize(right, dim=-1)).sum(-1) / 0.05

    return TwoTower(), {"user": ids(50)[:, 0], "age": floats(3), "item": ids(40)[:, 0]}


@ranker()
def cosine_two_tower() -> Made:
    class Cosine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user, self.item = nn.Embedding(50, 8), nn.Embedding(40, 8)

        def forward(self, user: Tensor, item: Tensor) -> Tensor:
            return F.cosine_similarity(self.user(user), self.item(item))

    return Cosine(), (ids(50)[:, 0], ids(40)[:, 0])


@ranker()
def neural_collaborative_filtering() -> Made:
    class Ncf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user, self.item = nn.Embedding(50, 8), nn.Embedding(40, 8)
            self.mlp = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
            self.out = nn.Linear(12, 1)

        def forward(self, user: Tensor, item: Tensor) -> Tensor:
            u, i = self.user(user), self.item(item)
            return torch.sigmoid(self.out(torch.cat([u * i, self.mlp(torch.cat([u, i], -1))], -1)))

    return Ncf(), (ids(50)[:, 0], ids(40)[:, 0])


@ranker()
def dlrm() -> Made:
    class Dlrm(nn.Module):
        """The interaction of the published model: all dot products below the diagonal."""

        def __init__(self) -> None:
            super().__init__()
            self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
            self.tables = nn.ModuleList(nn.EmbeddingBag(size, 8, mode="sum") for size in _FIELDS)
            self.top = nn.Sequential(nn.Linear(8 + 10, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

        def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
            x = self.bottom(dense)
            vectors = [x, *(table(sparse[:, at : at + 1]) for at, table in enumerate(self.tables))]
            stacked = torch.stack(vectors, 1)
            products = torch.bmm(stacked, stacked.transpose(1, 2))
            first, second = torch.tril_indices(5, 5, offset=-1)
            return self.top(torch.cat([x, products[:, first, second]], 1))

    return Dlrm(), (floats(5), ids(*_FIELDS))


@ranker()
def masked_mean_of_history() -> Made:
    class History(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.item, self.out = nn.Embedding(40, 8, padding_idx=0), nn.Linear(8, 1)

        def forward(self, history: Tensor) -> Tensor:
            mask = (history != 0).unsqueeze(-1).float()
            total = (self.item(history) * mask).sum(1)
            return self.out(total / mask.sum(1).clamp(min=1))

    return History(), ids(40, 40, 40, 40)


@ranker()
def bag_of_words() -> Made:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.EmbeddingBag(60, 8, mode="mean", padding_idx=0)
            self.weighted = nn.EmbeddingBag(60, 8, mode="sum")
            self.out = nn.Linear(16, 3)

        def forward(self, words: Tensor, weights: Tensor) -> Tensor:
            return self.out(
                torch.cat([self.words(words), self.weighted(words, per_sample_weights=weights)], 1)
            )

    return Bags(), (ids(60, 60, 60), floats(3))


@ranker()
def hashed_ids_and_time() -> Made:
    class Hashed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.item, self.hour = nn.Embedding(32, 4), nn.Embedding(24, 3)
            self.out = nn.Linear(8, 1)

        def forward(self, item: Tensor, time: Tensor) -> Tensor:
            age = (time - 1_700_000_000).float().unsqueeze(-1) / 86400
            return self.out(torch.cat([self.item(item % 32), self.hour(time // 3600 % 24), age], -1))

    return Hashed(), (torch.tensor([5, 1 << 40]), torch.tensor([1_700_000_123, 1_700_900_000]))


@ranker()
def clamped_columns_of_floats() -> Made:
    class Clamped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.fc = nn.Embedding(10, 3), nn.Linear(12, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.emb(x.long().clamp(0, 9)).flatten(1))

    return Clamped(), 5 * floats(4)


@ranker()
def one_hot_categories() -> Made:
    class OneHot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Sequential(nn.Linear(7 + 5 + 2, 8), nn.ReLU(), nn.Linear(8, 1))

        def forward(self, colour: Tensor, size: Tensor, x: Tensor) -> Tensor:
            codes = [F.one_hot(colour, 7).float(), x, F.one_hot(size, 5).float()]
            return self.out(torch.cat(codes, -1))

    return OneHot(), (ids(7)[:, 0], ids(5)[:, 0], floats(2))


@ranker()
def imputer_and_buckets() -> Made:
    class Imputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("means", torch.tensor([0.5, -1.0, 2.0]))
            self.register_buffer("edges", torch.tensor([-1.0, 0.0, 1.0]))
            self.age, self.out = nn.Embedding(4, 3), nn.Linear(3 + 3 + 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            missing = torch.isnan(x)
            filled = torch.where(missing, self.means, x)
            bucket = self.age(torch.bucketize(filled[:, 0], self.edges))
            return self.out(torch.cat([torch.log1p(filled.abs()), missing.float(), bucket], 1))

    return Imputed(), floats(3)


@ranker()
def unknown_categories() -> Made:
    class Unknown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.city, self.out = nn.Embedding(10, 4), nn.Linear(4, 1)

        def forward(self, city: Tensor) -> Tensor:
            known = torch.where(city >= 10, 0, city)
            return self.out(self.city(known.masked_fill(known == -1, 9).clamp(min=0)))

    return Unknown(), ids(10)[:, 0]


@ranker()
def mixture_of_experts() -> Made:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.Parameter(torch.randn(3, 6, 8))
            self.gate, self.out = nn.Linear(6, 3), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            outputs = torch.einsum("bi,eio->beo", x, self.experts).relu()
            weights = self.gate(x).softmax(-1)
            return self.out(torch.einsum("be,beo->bo", weights, outputs))

    return Experts(), floats(6)


@ranker()
def policy_with_action() -> Made:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(6, 4)

        def forward(self, observation: Tensor) -> dict[str, Tensor]:
            q = self.q(observation)
            best = q.argmax(1, keepdim=True)
            return {"action": best, "value": q.gather(1, best)}

    return Policy(), floats(6)


@ranker()
def ensemble_by_vmap() -> Made:
    class Ensemble(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            members = [nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(3)]
            stacked, _ = torch.func.stack_module_state(members)
            self.values = nn.ParameterDict(
                {name.replace(".", "_"): nn.Parameter(each.detach()) for name, each in stacked.items()}
            )
            self.names = list(stacked)
            self.base = [members[0]]

        def forward(self, x: Tensor) -> Tensor:
            def call(parameters: dict[str, Tensor], given: Tensor) -> Tensor:
                return torch.func.functional_call(self.base[0], parameters, (given,))

            own = {name: self.values[name.replace(".", "_")] for name in self.names}
            return torch.vmap(call, in_dims=(0, None))(own, x).mean(0)

    return Ensemble(), floats(5)


@ranker()
def mixer_of_features() -> Made:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.channels = nn.Conv1d(4, 6, 1), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.channels(F.gelu(self.tokens(x))).flatten(1)

    return Mixer(), floats(4, 5)


@ranker()
def flags_and_counts() -> Made:
    class Flags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 1)

        def forward(self, clicked: Tensor, counts: Tensor) -> Tensor:
            return self.out(torch.cat([clicked, counts.log1p()], 1))

    return Flags(), (floats(2) > 0, ids(50, 50).int())


@ranker("", "self-attention over a history", refused="attention")
def history_attention() -> Made:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.item, self.out = nn.Embedding(40, 8), nn.Linear(8, 1)

        def forward(self, history: Tensor) -> Tensor:
            x = self.item(history)
            weights = torch.softmax(x @ x.transpose(1, 2) / 8**0.5, -1)
            return self.out((weights @ x).mean(1))

    return Attention(), ids(40, 40, 40)


@ranker("", "recurrent history", refused="recurrent")
def history_gru() -> Made:
    class Gru(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.item, self.gru, self.out = (
                nn.Embedding(40, 8),
                nn.GRU(8, 8, batch_first=True),
                nn.Linear(8, 1),
            )

        def forward(self, history: Tensor) -> Tensor:
            return self.out(self.gru(self.item(history))[0][:, -1])

    return Gru(), ids(40, 40, 40)
