# SPDX-License-Identifier: Apache-2.0
"""Every module of the zoo is imported by from_torch as it is, and computes what it computes in PyTorch."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from fused_mlp import models
from fused_mlp.models import Mlp, ModelLoadError
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.service.client import Client
from tests.models.zoo import activations, everyday, heads, linears, public  # noqa: F401 - they fill the zoo
from tests.models.zoo.entry import ZOO, Entry, answer
from tests.models.zoo.packages import install_packages
from tests.support.server import Server

PUBLIC = [entry for entry in ZOO if entry.factory.__module__ == public.__name__]
ROWS = 5
MLPS = [entry for entry in ZOO if entry.is_mlp]


def by_name(entries: list[Entry]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("entry", entries, ids=lambda entry: entry.name)


@cache
def imported(entry: Entry) -> Mlp | ModelLoadError:
    if entry in PUBLIC and (problem := install_packages()) is not None:
        pytest.skip(problem)
    try:
        return models.from_torch(entry.make(), example=entry.input())
    except ModelLoadError as error:
        return error


@by_name([entry for entry in ZOO if entry.refused is None])
def test_a_module_is_taken_as_it_is_and_computes_the_same(entry):
    mlp = imported(entry)
    if isinstance(mlp, ModelLoadError):
        raise mlp
    x = entry.rows(8)
    expected = answer(entry.make(), x)
    assert [int(each.shape[1]) for each in expected.values()] == list(mlp.spec.output_widths)
    if len(expected) > 1 and not next(iter(expected)).isdecimal():
        assert [output.name for output in mlp.spec.outputs] == list(expected)
    # The tensors are float32: folding a norm into one rounds it once more than the module does.
    got = evaluate(mlp, x.reshape(len(x), -1).numpy().astype(np.float64))
    together = np.concatenate(list(expected.values()), axis=1)
    np.testing.assert_allclose(got, together, rtol=1e-4, atol=2e-6 * max(1.0, float(np.abs(together).max())))


@by_name([entry for entry in ZOO if entry.refused is not None])
def test_what_is_refused_is_refused_in_words(entry):
    error = imported(entry)
    assert isinstance(error, ModelLoadError), f"taken: {error}"
    assert "\n" not in str(error)
    assert any(word in str(error).lower() for word in str(entry.refused).split("|")), str(error)


@pytest.mark.timeout(600)  # alone, it imports the whole zoo first
def test_at_least_95_of_100_mlps_are_taken():
    assert len(MLPS) >= 45
    refused = {entry.name: str(made) for entry in MLPS if isinstance(made := imported(entry), ModelLoadError)}
    assert len(refused) <= 0.05 * len(MLPS), refused


def test_a_model_without_an_example_asks_for_one_in_words():
    entry = next(entry for entry in MLPS if entry.name == "PolynomialFeatures")
    with pytest.raises(ModelLoadError, match="example"):
        models.from_torch(entry.make())


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The modules by the name that they are served under, and a client."""
    root = tmp_path_factory.mktemp("zoo")
    public = install_packages() is None
    entries = {}
    for entry in ZOO:
        if entry.refused is None and (public or entry not in PUBLIC):
            mlp = imported(entry)
            assert isinstance(mlp, Mlp), f"{entry.name}: {mlp}"
            name = re.sub(r"\W+", "-", entry.name).lower()
            models.save(mlp.annotated(example=[0.5] * mlp.spec.in_features), root / name / "1")
            entries[name] = entry
    with Server(model_repository=root) as server, Client(server.target) as client:
        yield entries, client


@pytest.mark.timeout(600)  # alone, it imports the whole zoo first
def test_every_module_answers_over_a_socket_as_in_pytorch(served):
    entries, client = served
    assert len(entries) >= 45
    wrong = {}
    for name, entry in entries.items():
        x = entry.rows(ROWS)
        expected = next(iter(answer(entry.make(), x).values()))  # Predict answers the first head
        got = client.predict(name, x.reshape(ROWS, -1).numpy()).output.reshape(ROWS, -1)
        error = np.abs(got[:, : expected.shape[1]] - expected).max() / max(1.0, float(np.abs(expected).max()))
        # float32 all the way; sin(30 x) and exp amplify its rounding
        if got.shape[1] < expected.shape[1] or not error < 2e-4:
            wrong[entry.name] = (got.shape, float(error))
    assert not wrong
