# SPDX-License-Identifier: Apache-2.0
"""Pins and rollbacks beside loads, and the versions that a policy names."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fused_mlp.models import Mlp, save
from fused_mlp.models.repository.repository import FoundVersion, Repository
from fused_mlp.service import app
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.client.admin import AdminClient
from tests.kernels.cuda.random_models import make_mlp, make_spec
from tests.support.puppet import PuppetService
from tests.support.server import free_port

X = np.ones((1, 4), np.float32)


def add(root: Path, version: int, width: int = 4) -> None:
    save(make_mlp(make_spec((width, 8, 3)), seed=version), root / "m" / str(version))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for version in (1, 2, 3):
        add(tmp_path, version)
    return tmp_path


@pytest.fixture
def puppet(root: Path) -> Iterator[PuppetService]:
    policy = '{"m": {"versions": "latest:2"}}'
    with PuppetService(
        backend="auto", admin_port=free_port(), model_repository=root, policy=policy
    ) as running:
        yield running


@pytest.fixture
def admin(puppet: PuppetService) -> Iterator[AdminClient]:
    with AdminClient(puppet.admin_target) as connected:
        yield connected


def served(puppet: PuppetService) -> set[int]:
    return {v.version for v in puppet.service.catalog.get("m").ready}


class SlowDisk:
    """Reading version 4 takes until `gate` is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.gate = threading.Event(), threading.Event()
        read = Repository.read

        def slow(repository: Repository, found: FoundVersion, *, again: bool = False) -> Mlp:
            if found.version == 4:
                self.reached.set()
                assert self.gate.wait(30)
            return read(repository, found, again=again)

        monkeypatch.setattr(Repository, "read", slow)


def test_a_version_that_is_ready_is_pinned_while_another_is_loaded(
    root: Path, puppet: PuppetService, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    with ThreadPoolExecutor(1) as pool, Client(puppet.target) as client:
        try:
            assert client.predict("m", X).version == 3
            add(root, 4)
            load = pool.submit(admin.load, "m")
            assert disk.reached.wait(30)
            assert admin.roll_back("m").default_version == 2
            assert client.predict("m", X).version == 2
            assert admin.pin("m", 3).default_version == 3
            assert client.predict("m", X).version == 3
            assert not load.done()
        finally:
            disk.gate.set()
        assert load.result().default_version == 3
        puppet.wait_for(lambda: served(puppet) == {3, 4})  # 2 was kept by its pin alone


def test_versions_that_a_policy_names_are_served_at_once(puppet: PuppetService, admin: AdminClient) -> None:
    assert served(puppet) == {2, 3}
    (told,) = admin.set_policy("m", labels={"stable": 1})
    assert (told.labels, told.unknown) == ({"stable": 1}, ())
    assert served(puppet) == {1, 2, 3}
    with Client(puppet.target) as client:
        assert client.predict("m", X, arm="stable").version == 1
    admin.set_policy("m", labels={}, versions="latest:1")
    assert served(puppet) == {3}
    admin.set_policy("m", arms={"1/fused": 0.5})
    assert served(puppet) == {1, 3}
    admin.set_policy("m", arms={})
    puppet.wait_for(lambda: served(puppet) == {3})
    admin.set_policy("m", version=2)
    assert served(puppet) == {2, 3}


def test_a_refused_change_leaves_the_versions_as_they_were(puppet: PuppetService, admin: AdminClient) -> None:
    with pytest.raises(PredictError, match="arms: 9 of m cannot answer: there is no such version"):
        admin.set_policy("m", versions="latest:1", arms={"1": 0.5, "9": 0.5})
    puppet.wait_for(lambda: served(puppet) == {2, 3})  # 1 was loaded for it
    assert puppet.service.catalog.policy("m").versions == "latest:2"
    with pytest.raises(PredictError, match="versions: m has none of 8,9"):
        admin.set_policy("m", versions="8,9")
    assert served(puppet) == {2, 3}


def test_a_rollback_works_while_the_repository_is_away(
    root: Path, puppet: PuppetService, admin: AdminClient
) -> None:
    admin.set_policy("m", version=2)
    (root / "m").rename(root / ".away")
    assert admin.pin("m", 3).default_version == 3
    assert admin.roll_back("m").default_version == 2
    with pytest.raises(PredictError, match="no version below 2 to go back to"):
        admin.roll_back("m")
    assert served(puppet) == {2, 3}


def test_a_new_default_that_takes_other_rows_is_told(
    root: Path, puppet: PuppetService, admin: AdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    add(root, 4, width=5)
    admin.load("m")
    assert "m/4 answers from now on and takes rows of 5, version 3 of 4" in caplog.text


def defaults_seen(puppet: PuppetService) -> list[int]:
    """Grows by the version that answers by default, with each change that callers can see."""
    seen: list[int] = []

    def record(_: object) -> None:
        default = (
            puppet.service.catalog.get("m").default if puppet.service.catalog.served_versions() else None
        )
        seen.extend([default.version] if default else [])

    puppet.service.catalog.on_change(record)
    return seen


@pytest.mark.parametrize(
    ("policy", "answers"),
    [
        ({"version": "1"}, 1),
        ({"version": "stable", "labels": {"stable": 2}}, 2),
        ({"version": "previous"}, 2),
        ({"canary": {"to": "3"}}, 2),
    ],
)
@pytest.mark.parametrize("load", ["eager", "lazy"])
def test_no_other_version_answers_before_the_one_that_the_policy_names(
    root: Path, policy: dict[str, object], answers: int, load: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "CANARIES_EVERY_S", 3600)  # canaries stay as they are
    settings = {"model_repository": root, "load": load, "policy": json.dumps({"m": policy})}
    with (
        PuppetService(backend="auto", admin_port=free_port(), **settings) as puppet,
        AdminClient(puppet.admin_target) as admin,
        Client(puppet.target) as client,
    ):
        admin.unload("m")
        seen = defaults_seen(puppet)
        admin.load("m")
        assert set(seen) == {answers}
        assert client.predict("m", X).version == answers


def test_a_broken_version_that_the_policy_names_holds_up_no_other(root: Path) -> None:
    policy = '{"m": {"version": "1"}}'
    with (
        PuppetService(backend="auto", admin_port=free_port(), model_repository=root, policy=policy) as puppet,
        AdminClient(puppet.admin_target) as admin,
    ):
        admin.unload("m")
        (root / "m" / "1" / "model.json").write_text("{")
        with pytest.raises(PredictError, match="without some of its versions"):
            admin.load("m")
        assert puppet.service.catalog.find("m").version == 3


@pytest.mark.parametrize("completed", [True, False], ids=["completed", "given up"])
def test_a_model_that_comes_back_waits_until_the_version_that_is_pinned_is_written(
    root: Path, completed: bool
) -> None:
    policy = '{"m": {"version": "1"}}'
    shutil.copytree(root / "m", root / "other")  # an empty repository counts as away
    with PuppetService(
        backend="auto", model_repository=root, policy=policy, reload="poll:0.01", reload_settle_s=3600
    ) as puppet:
        away, catalog = root / ".away", puppet.service.catalog
        (root / "m").rename(away)
        puppet.wait_for(lambda: "m" not in catalog.served_versions())
        seen = defaults_seen(puppet)
        weights = (away / "1" / "model.safetensors").read_bytes()
        (away / "1" / "model.safetensors").write_bytes(weights[:100])
        away.rename(root / "m")
        puppet.wait_for(lambda: "m" in catalog.served_versions())
        add(root, 4)
        add(root / ".draft", 1)
        (root / ".draft" / "m").rename(root / "z")  # followed after m
        puppet.wait_for(lambda: "z" in catalog.served_versions())
        assert not seen
        if completed:
            (root / "m" / "1" / "model.safetensors").write_bytes(weights)
        else:
            shutil.rmtree(root / "m" / "1")
        expected = 1 if completed else 4
        puppet.wait_for(lambda: catalog.find("m").answers and len(catalog.get("m").ready) >= 3)
        assert set(seen) == {expected}
