# SPDX-License-Identifier: Apache-2.0
"""Which changes of a repository are followed at once, and which wait until the version is complete."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fused_mlp import models
from fused_mlp.models import Repository
from fused_mlp.service.reload.changes import Change, Changes
from tests.support.fleet import tiny_mlp

SETTLE_S = 5.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Followed:
    """A repository with one model, and what is found when time passes."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock = root, Clock()
        models.save(tiny_mlp(), root / "tiny" / "1")
        self.served: dict[str, list[int]] = {}
        repository = Repository(root)
        repository.scan()
        self._changes = Changes(repository, SETTLE_S, lambda: self.served, self.clock)

    def find(self, after_s: float = 0) -> list[tuple[str, set[int]]]:
        """Names and held versions; all of it counts as followed."""
        self.clock.now += after_s
        found: list[Change] = list(self._changes.find())
        for change in found:
            self._changes.done(change)
        return [(change.model, set(change.held)) for change in found]

    @property
    def waiting(self) -> bool:
        return self._changes.waiting

    def copy(self, version: int, *names: str) -> Path:
        target = self.root / "tiny" / str(version)
        target.mkdir(exist_ok=True)
        for name in names:
            shutil.copy(self.root / "tiny" / "1" / name, target / name)
        return target


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path)


def test_nothing_changes(followed: Followed) -> None:
    assert followed.find() == []
    assert not followed.waiting


def test_a_saved_version_is_complete_at_once(followed: Followed) -> None:
    models.save(tiny_mlp(), followed.root / "tiny" / "2")
    assert followed.find() == [("tiny", set())]
    assert followed.find() == []
    assert not followed.waiting


def test_a_copy_with_a_hash_is_complete_when_it_is_right(followed: Followed) -> None:
    followed.copy(2, "model.json", "model.safetensors.sha256")
    assert followed.find() == []
    weights = followed.copy(2, "model.safetensors") / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4] + b"\0\0\0\0")
    assert followed.find(1) == []
    assert followed.waiting
    weights.write_bytes(whole)
    assert followed.find(1) == [("tiny", set())]


def test_a_copy_without_a_hash_is_complete_when_it_has_settled(followed: Followed) -> None:
    followed.copy(2, "model.json")
    assert followed.find() == []
    followed.copy(2, "model.safetensors")
    assert followed.find(SETTLE_S) == []  # it has changed
    assert followed.find(SETTLE_S - 1) == []
    assert followed.waiting
    assert followed.find(1) == [("tiny", set())]
    assert not followed.waiting


def test_a_version_that_is_being_written_holds_up_no_other(followed: Followed) -> None:
    followed.copy(2, "model.json")
    models.save(tiny_mlp(), followed.root / "tiny" / "3")
    assert followed.find() == [("tiny", {2})]
    assert followed.find(1) == []
    assert followed.find(SETTLE_S) == [("tiny", set())]  # such as it is: its failure is told


def test_a_version_and_a_model_that_are_gone_are_gone_at_once(followed: Followed) -> None:
    models.save(tiny_mlp(), followed.root / "tiny" / "2")
    models.save(tiny_mlp(), followed.root / "other" / "1")
    assert followed.find() == [("other", set()), ("tiny", set())]
    shutil.rmtree(followed.root / "tiny" / "1")
    shutil.rmtree(followed.root / "other")
    assert followed.find() == [("other", set()), ("tiny", set())]
    assert followed.find() == []


def test_a_version_that_an_operator_had_loaded_is_gone_too(followed: Followed) -> None:
    followed.copy(2, "model.json")
    assert followed.find() == []
    followed.served = {"tiny": [1, 2], "other": [1]}
    shutil.rmtree(followed.root / "tiny" / "2")
    assert followed.find() == [("other", set()), ("tiny", set())]
    followed.served = {"tiny": [1]}
    assert followed.find() == []


def test_a_repository_that_is_away_or_empty_has_not_changed(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    away = followed.root.with_name("away")
    for empty in (False, True):
        followed.root.rename(away)
        if empty:
            followed.root.mkdir()
        assert followed.find() == []
        assert followed.find() == []
        if empty:
            followed.root.rmdir()
        away.rename(followed.root)
        assert followed.find() == []
    assert len([r for r in caplog.records if "keeping the current versions" in r.getMessage()]) == 2
