# SPDX-License-Identifier: Apache-2.0
"""The zoo over a real socket: one server, a repository of every module that is taken, one Predict for each."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fused_mlp import models
from fused_mlp.models import Mlp
from fused_mlp.service.client import Client
from tests.models.zoo.entry import ZOO, answer
from tests.models.zoo.packages import install_packages
from tests.models.zoo.test_zoo import PUBLIC, imported
from tests.support.server import Server

ROWS = 5


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
