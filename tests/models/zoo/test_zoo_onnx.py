# SPDX-License-Identifier: Apache-2.0
"""ONNX files of real exporters: of torch, both of them, for modules of the zoo, and of scikit-learn's converter."""

from __future__ import annotations

import logging
import math
import warnings

import numpy as np
import pytest
import torch

from fused_mlp import models
from fused_mlp.models import ModelLoadError
from fused_mlp.models.program.evaluation import evaluate
from tests.models.zoo.entry import ZOO, answer
from tests.models.zoo.packages import install_packages
from tests.models.zoo.tabular.comparison import REFUSED, compare, entries
from tests.models.zoo.test_zoo import PUBLIC

# One of each kind: what the exporters write differs by operator, not by model.
DYNAMO = (
    "SwigluPacked",
    "group_norm_of_features",
    "HeadsInADict",
    "CategoricalDqn",
    "Einsum",
    "pre_norm_tower",
)
SAMPLE = (
    "MnistOfTheTutorials",
    "pre_norm_tower",
    "TabularResNet",
    "HandWrittenRmsNorm",
    "group_norm_of_features",
    "SoftMixtureOfExperts",
    "SwigluPacked",
    "conv1d_of_gpt2",
    "Einsum",
    "snake",
    "quick_gelu",
    "DuelingDqn",
    "ActorCritic",
    "HeadsInADict",
    "CategoricalDqn",
    "EmbeddingHead",
    "Nerf",
)
ENTRIES = [entry for entry in ZOO if entry.name in SAMPLE]


@pytest.fixture(autouse=True)
def _packages():
    if (problem := install_packages()) is not None:
        pytest.skip(problem)


# The newer exporter takes a second for each file: those whose graphs differ from what the older one writes.
NEWER = (
    "dynamo dlrm",
    "dynamo history",
    "dynamo hashed ids and hours",
    "dynamo one-hot",
    "dynamo embedding bag",
)
TABULAR = [each for each in entries() if not each.name.startswith("dynamo") or each.name in NEWER]


class Together(torch.nn.Module):
    """Several modules side by side, each of which gets its part of the row."""

    def __init__(self, entries):
        super().__init__()
        self.shapes = [entry.shape for entry in entries]
        self.parts = torch.nn.ModuleList(entry.make() for entry in entries)

    def forward(self, x):
        rows = x.split([math.prod(shape) for shape in self.shapes], 1)
        made = [
            part(row.reshape(-1, *shape))
            for part, row, shape in zip(self.parts, rows, self.shapes, strict=True)
        ]
        answers = [list(each.values()) if isinstance(each, dict) else [each] for each in made]
        return tuple(tensor for each in answers for tensor in each)


def compare_module(module, x, path, **options):
    """Export it, read the file, and compare."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporters, about themselves
        torch.onnx.export(module, (x[:4],), path, **options)
    mlp = models.from_onnx(path)
    expected = np.concatenate(list(answer(module, x).values()), axis=1)
    got = evaluate(mlp, x.reshape(len(x), -1).numpy().astype(np.float64))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda each: each.name)
def test_what_torch_exports_is_read_and_computes_the_same(entry, tmp_path):
    assert entry not in PUBLIC
    options = {"dynamo": False, "input_names": ["x"], "dynamic_axes": {"x": {0: "rows"}}}
    compare_module(entry.make(), entry.rows(8), tmp_path / "m.onnx", **options)


def test_what_the_newer_exporter_writes_is_read_and_computes_the_same(tmp_path):
    """All at once: it takes a second for each file, whatever is in it."""
    made = [entry for entry in ENTRIES if entry.name in DYNAMO]
    x = torch.cat([entry.rows(8).flatten(1) for entry in made], 1)
    rows = ({0: torch.export.Dim.DYNAMIC},)
    compare_module(
        Together(made).eval(), x, tmp_path / "m.onnx", dynamo=True, dynamic_shapes=rows, verbose=False
    )


def pipelines():
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, Normalizer, StandardScaler

    small = {"hidden_layer_sizes": (8, 5), "max_iter": 3, "random_state": 0}
    return {
        "a classifier": MLPClassifier(**small),
        "a classifier behind a scaler": make_pipeline(
            StandardScaler(), MLPClassifier(**small, activation="tanh")
        ),
        "a classifier behind a normaliser": make_pipeline(
            Normalizer(), MLPClassifier(**small, activation="logistic")
        ),
        "a classifier behind a range": make_pipeline(MinMaxScaler(), MLPClassifier(**small)),
        "a logistic regression": make_pipeline(StandardScaler(), LogisticRegression()),
        "a regressor": make_pipeline(StandardScaler(), MLPRegressor(**small)),
    }


@pytest.mark.parametrize("zipmap", [True, False])
@pytest.mark.parametrize("name", pipelines())
def test_pipelines_of_scikit_learn_are_read_with_their_labels(name, zipmap, tmp_path):
    x = np.random.default_rng(0).normal(2, 3, size=(60, 4)).astype(np.float32)
    labels = np.array(["ant", "bee", "cat"])[np.arange(60) % 3]
    pipeline = pipelines()[name]
    regressor = name == "a regressor"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that three rounds of training are few
        from skl2onnx import to_onnx

        pipeline.fit(x, x[:, 0] if regressor else labels)
        options = None if regressor else {id(pipeline): {"zipmap": zipmap}}
        model = to_onnx(pipeline, x[:1], options=options)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    mlp = models.from_onnx(tmp_path / "m.onnx")
    got = evaluate(mlp, x.astype(np.float64))
    if regressor:
        np.testing.assert_allclose(got[:, 0], pipeline.predict(x), rtol=1e-4, atol=1e-4)
        return
    np.testing.assert_allclose(got, pipeline.predict_proba(x), rtol=1e-4, atol=1e-5)
    assert "label" in mlp.source
    if zipmap:
        assert mlp.spec.labels == ("ant", "bee", "cat")


@pytest.mark.parametrize("entry", TABULAR, ids=lambda each: each.name)
def test_rankers_and_tables_answer_what_onnxruntime_answers(entry, tmp_path):
    if entry.name in REFUSED:
        with pytest.raises(ModelLoadError, match=REFUSED[entry.name]):
            compare(entry, tmp_path)
    else:
        compare(entry, tmp_path)
