# SPDX-License-Identifier: Apache-2.0
"""Several repositories as one: what is away holds up none of the others, and takes nothing away."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fused_mlp import models
from fused_mlp.models import ModelLoadError, Repository
from fused_mlp.models.repository.repositories import Repositories
from tests.support.fleet import tiny_mlp


@pytest.fixture
def both(tmp_path: Path) -> Repositories:
    for name in ("first", "second"):
        models.save(tiny_mlp(), tmp_path / name / name / "1")
    both = Repositories([Repository(tmp_path / "first"), Repository(tmp_path / "second")])
    assert [model.name for model in both.scan()] == ["first", "second"]
    return both


def versions(repository: Repository) -> dict[str, list[int]]:
    return {name: sorted(seen) for name, seen in repository.look().items()}


@pytest.mark.parametrize("empty", [False, True], ids=["gone", "a mount point"])
def test_one_that_is_away_stays_as_it_was_and_the_others_are_followed(
    both: Repositories, tmp_path: Path, caplog: pytest.LogCaptureFixture, empty: bool
) -> None:
    (tmp_path / "second").rename(tmp_path / "away")
    if empty:
        (tmp_path / "second").mkdir()
    models.save(tiny_mlp(), tmp_path / "first" / "first" / "2")
    for _ in range(2):
        assert versions(both) == {"first": [1, 2], "second": [1]}
    assert [bool(part.problems) for part in both.parts] == [False, True]
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    with pytest.raises(ModelLoadError, match="it is empty now"):  # or it would be retired
        both.find_or_none("second")
    shutil.rmtree(tmp_path / "second", ignore_errors=True)
    (tmp_path / "away").rename(tmp_path / "second")
    models.save(tiny_mlp(), tmp_path / "second" / "second" / "2")
    shutil.rmtree(tmp_path / "first" / "first" / "1")
    assert versions(both) == {"first": [2], "second": [1, 2]}
    assert not any(part.problems for part in both.parts)


def test_one_that_is_away_at_the_start_is_taken_when_it_comes_back(
    both: Repositories, tmp_path: Path
) -> None:
    (tmp_path / "second").rename(tmp_path / "away")
    fresh = Repositories([Repository(tmp_path / "first"), Repository(tmp_path / "second")])
    assert [model.name for model in fresh.scan()] == ["first"]
    assert "does not exist" in fresh.parts[1].problems[0]
    assert versions(fresh) == {"first": [1]}
    (tmp_path / "away").rename(tmp_path / "second")
    assert versions(fresh) == {"first": [1], "second": [1]}
    found = fresh.find_or_none("second")
    assert found is not None
    assert not found.versions[0].problem


def test_a_model_that_cannot_be_listed_stays_and_the_others_are_followed(
    both: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.save(tiny_mlp(), tmp_path / "first" / "other" / "1")
    assert versions(both) == {"first": [1], "other": [1], "second": [1]}
    listdir = models.repository.repository.os.listdir

    def refuse(path: Path) -> list[str]:
        if path == tmp_path / "first" / "first":
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(models.repository.repository.os, "listdir", refuse)
    models.save(tiny_mlp(), tmp_path / "first" / "other" / "2")
    assert versions(both) == {"first": [1], "other": [1, 2], "second": [1]}
    assert "Permission denied" in both.parts[0].problems[0]


def test_the_first_one_that_has_a_model_serves_it(both: Repositories, tmp_path: Path) -> None:
    models.save(tiny_mlp(), tmp_path / "second" / "first" / "7")
    assert versions(both) == {"first": [1], "second": [1]}
    (tmp_path / "first").rename(tmp_path / "away")
    assert versions(both) == {"first": [1], "second": [1]}
    with pytest.raises(ModelLoadError, match="it is empty now"):
        both.find_or_none("first")


def test_a_model_that_none_has_is_refused_with_all_places(both: Repositories, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=f"not in repository {tmp_path}/first, {tmp_path}/second"):
        both.find("third")
