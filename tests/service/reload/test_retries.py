# SPDX-License-Identifier: Apache-2.0
"""When versions that could not be loaded are tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from fused_mlp.models import Mlp, save
from fused_mlp.models.repository.repository import FoundVersion, Repository
from fused_mlp.service.reload import reloader, retries
from fused_mlp.service.reload.retries import FIRST_PAUSE_S, LONGEST_PAUSE_S, Retries
from tests.support.fleet import make_fleet, tiny_mlp
from tests.support.puppet import PuppetService


class Failures:
    def __init__(self) -> None:
        self.now = 0.0
        self.versions: dict[str, set[int]] = {}
        self.retries = Retries(lambda: self.versions, lambda: self.now)

    def pause(self) -> float:
        """Seconds until the next retry of any model."""
        since = self.now
        while not self.retries.due():
            self.now += 1
        return self.now - since


def test_each_pause_is_twice_the_one_before_up_to_a_limit() -> None:
    failures = Failures()
    failures.versions = {"bad": {1}}
    assert [failures.pause() for _ in range(3)] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert [failures.pause() for _ in range(8)][-1] == LONGEST_PAUSE_S


def test_another_failure_starts_with_the_first_pause() -> None:
    failures = Failures()
    failures.versions = {"bad": {1}}
    failures.pause()
    failures.versions = {"bad": {1, 2}}
    assert failures.pause() == FIRST_PAUSE_S
    failures.versions = {}
    assert failures.retries.due() == []
    failures.versions = {"bad": {1, 2}}
    assert failures.pause() == FIRST_PAUSE_S


def test_a_version_is_loaded_when_memory_is_free_again_and_its_failure_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reloader, "RETRY_LOOK_S", 0.01)
    monkeypatch.setattr(retries, "FIRST_PAUSE_S", 0.01)
    read, refusals = Repository.read, 3

    def read_when_there_is_memory(repository: Repository, found: FoundVersion, **options: bool) -> Mlp:
        nonlocal refusals
        if found.path.parent.name == "m001" and refusals:
            refusals -= 1
            raise MemoryError
        return read(repository, found, **options)

    monkeypatch.setattr(Repository, "read", read_when_there_is_memory)
    make_fleet(tmp_path, 1)
    save(tiny_mlp(), tmp_path / "m001" / "1")
    with PuppetService(model_repository=tmp_path, reload="signal", backend="auto") as puppet:
        puppet.wait_for(lambda: puppet.service.catalog.get("m001").default is not None)
        assert not puppet.service.catalog.failed()
    assert caplog.text.count("m001/1 is not served: m001/1: does not fit into memory") == 1
