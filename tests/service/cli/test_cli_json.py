# SPDX-License-Identifier: Apache-2.0
"""--json: on every command, one document on stdout with the documented keys, and nothing else there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bench.docs.figures.reference import commands
from fused_mlp.models import save
from tests.kernels.cuda.random_models import make_mlp, make_spec
from tests.support.documents import KEYS
from tests.support.puppet import PuppetService
from tests.support.server import free_port

# Of `predict`, which says more about more.
SOMETIMES = {"outputs", "output_name", "requests"}
# Measured, or run elsewhere: tests of their own look at the document.
ELSEWHERE = {"ab", "profile", "warm", "ray up", "ray rollout", "ray status", "ray down"}


@pytest.fixture(scope="module")
def puppet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PuppetService]:
    folder = tmp_path_factory.mktemp("repository")
    for version in (1, 2):
        save(make_mlp(make_spec((4, 8, 3)), seed=version), folder / "m" / str(version))
    with PuppetService(admin_port=free_port(), model_repository=folder) as running:
        yield running


def test_every_command_has_it_or_a_reason():
    for name, command in commands().items():
        has = any("--json" in param.opts for param in command.params)
        assert has != (name == "serve"), name  # which has no result: it runs until it is ended
    assert commands().keys() == {*KEYS, "serve"}


IN_ORDER = [
    ["predict", "m", "-i", "ROWS"],
    ["models"],
    ["models", "m"],
    ["health"],
    ["health", "m"],
    ["import", "WEIGHTS", "-r", "REPO", "-n", "new", "--activation", "relu"],
    ["import", "WEIGHTS", "-r", "REPO", "-n", "new", "--activation", "relu", "--precision", "int8"],
    ["load", "m"],
    ["pin", "m"],
    ["rollback", "m"],
    ["policy", "get"],
    ["policy", "get", "m"],
    ["policy", "set", "m", "--split", "0"],
    ["policy", "unset", "m", "split"],
    ["policy", "history"],
    ["policy", "reset", "m"],
    ["canary", "m", "--to", "1", "--no-wait"],
    ["canary", "m", "--stop"],
    ["unload", "m"],
    ["keys", "new", "caller", "-f", "KEYS"],
    ["keys", "list", "-f", "KEYS"],
    ["keys", "revoke", "caller", "-f", "KEYS"],
]


def test_documents_have_the_documented_keys(cli, puppet: PuppetService, tmp_path: Path):
    np.save(tmp_path / "rows.npy", np.ones((2, 4), np.float32))
    tensors = {"0.weight": np.ones((40, 30), np.float32), "2.weight": np.ones((20, 40), np.float32)}
    save_file(tensors, tmp_path / "weights.safetensors")
    paths = {"ROWS": "rows.npy", "WEIGHTS": "weights.safetensors", "REPO": "repo", "KEYS": "keys.json"}
    seen = set()
    for arguments in IN_ORDER:
        name = next(name for name in KEYS if [*name.split()] == arguments[: len(name.split())])
        admin = name not in ("predict", "models", "health", "import")
        target = (
            []
            if name.startswith(("import", "keys"))
            else ["--target", puppet.admin_target if admin else puppet.target]
        )
        given = [tmp_path / paths[each] if each in paths else each for each in arguments]
        outcome = cli(*given, *target, "--json")
        assert outcome.code == 0, (arguments, outcome.err)
        assert outcome.out.count("\n") == 1
        document = json.loads(outcome.out)
        for each in document if isinstance(document, list) else [document]:
            assert each.keys() | SOMETIMES == KEYS[name] | SOMETIMES, arguments
        seen.add(name)
    assert seen | ELSEWHERE == set(KEYS)


@pytest.mark.parametrize("command", ["models", "policy get", "health", "load m", "pin m", "canary m --stop"])
def test_an_error_is_one_line_on_stderr(cli, command: str):
    outcome = cli(*command.split(), "--json", "--target", "127.0.0.1:1")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1


def test_a_mistake_is_one_line_too(cli):
    outcome = cli("models", "--json", "--no-such")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
