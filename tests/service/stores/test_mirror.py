# SPDX-License-Identifier: Apache-2.0
"""A store is mirrored into a folder: only what has changed, only what is whole, and nothing is lost when it fails."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fused_mlp import models
from fused_mlp.models import Repository
from fused_mlp.service.stores import mirror as mirror_module
from fused_mlp.service.stores.mirror import Mirror
from fused_mlp.service.stores.places import Mirrored as MirroredRepository
from tests.service.stores import lying_store
from tests.support.fleet import tiny_mlp

lying_store.register()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Mirrored:
    def __init__(self, folder: Path) -> None:
        self.remote, self.clock = folder / "remote", Clock()
        models.save(tiny_mlp(), self.remote / "tiny" / "1")
        self.url = f"lying://{self.remote}"
        self.cache = folder / "cache"
        self.mirror = Mirror(self.url, self.cache, single="tiny", clock=self.clock)

    def synchronise(self, after_s: float = 0) -> None:
        self.clock.now += after_s
        self.mirror.synchronise()

    def versions(self) -> dict[str, list[int]]:
        """That can be read whole."""
        if not self.mirror.folder.is_dir():
            return {}
        repository = Repository(self.mirror.folder)
        for model in repository.scan():
            for version in model.versions:
                repository.read(version)
        return {model.name: [v.version for v in model.versions] for model in repository.scan()}

    def drafts(self) -> list[Path]:
        return [*self.mirror.folder.glob("[!.]*/.*"), *self.mirror.folder.glob(".*.draft")]


@pytest.fixture
def mirrored(tmp_path: Path) -> Mirrored:
    return Mirrored(tmp_path)


def test_only_what_changes_is_fetched(mirrored: Mirrored, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    mirrored.synchronise()
    models.save(tiny_mlp(2), mirrored.remote / "tiny" / "2")
    mirrored.synchronise()
    mirrored.synchronise()
    assert mirrored.versions() == {"tiny": [1, 2]}
    fetched = [r.getMessage().split(" from")[0] for r in caplog.records if "fetched" in r.getMessage()]
    assert fetched == ["fetched tiny/1", "fetched tiny/2"]
    shutil.rmtree(mirrored.remote / "tiny" / "2")
    models.save(tiny_mlp(3), mirrored.remote / "tiny" / "2")
    shutil.rmtree(mirrored.remote / "tiny" / "1")
    mirrored.synchronise()
    assert mirrored.versions() == {"tiny": [2]}
    assert Repository(mirrored.mirror.folder).load("tiny", 2).tensors().keys()
    assert mirrored.drafts() == []


@pytest.mark.parametrize("lie", ["truncate", "repeat", "damage", "down"])
def test_a_store_that_fails_takes_nothing_away_and_is_asked_less_and_less(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lie: str
) -> None:
    mirrored.synchronise()
    models.save(tiny_mlp(2), mirrored.remote / "tiny" / "2")
    monkeypatch.setenv("LYING_STORE", lie)
    for after_s in (0, 0.5, 0.5, 1, 1, 1):  # tried at 0, 1 and 3
        mirrored.synchronise(after_s)
        assert mirrored.versions() == {"tiny": [1]}
    assert mirrored.mirror.failed == 3
    assert mirrored.drafts() == []
    (told,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]  # once
    what = {"truncate": "expected", "repeat": "got more", "damage": "SHA-256", "down": "connection refused"}
    assert what[lie] in told
    monkeypatch.delenv("LYING_STORE")
    mirrored.synchronise(10)
    assert mirrored.versions() == {"tiny": [1, 2]}


def test_a_version_that_cannot_be_fetched_is_told_until_it_can(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored.synchronise()
    repository = MirroredRepository(mirrored.mirror, "tiny")
    repository.scan()
    models.save(tiny_mlp(2), mirrored.remote / "tiny" / "2")
    models.save(tiny_mlp(2), mirrored.remote / "other" / "1")
    monkeypatch.setenv("LYING_STORE", "truncate")
    mirrored.synchronise()
    seen = repository.look()
    assert {name: sorted(versions) for name, versions in seen.items()} == {"other": [1], "tiny": [1, 2]}
    found = repository.find("tiny").versions
    assert [v.problem is None for v in found] == [True, False]
    assert "it could not be fetched: model.safetensors: expected" in (found[1].problem or "")
    assert {v.version: v.signature for v in found} == seen["tiny"]
    assert {model.name for model in repository.scan()} == {"other", "tiny"}
    assert len(repository.problems) == 2
    monkeypatch.delenv("LYING_STORE")
    shutil.rmtree(mirrored.remote / "other")
    mirrored.synchronise(10)
    assert [v.problem for v in repository.find("tiny").versions] == [None, None]
    assert repository.look().keys() == {"tiny"}
    assert repository.problems == []


def test_what_else_lies_in_the_cache_is_passed_over(
    mirrored: Mirrored, caplog: pytest.LogCaptureFixture
) -> None:
    mirrored.synchronise()
    odd = mirrored.mirror.folder / "tiny" / "7x"
    odd.mkdir()
    for number in (2, 3):
        models.save(tiny_mlp(), mirrored.remote / "tiny" / str(number))
        mirrored.synchronise()
    assert mirrored.versions() == {"tiny": [1, 2, 3]}
    assert caplog.text.count("tiny/7x: not a fetched version") == 1
    assert odd.is_dir()
    assert mirrored.mirror.problems == []


def test_a_store_with_nothing_in_it_takes_nothing_away(mirrored: Mirrored) -> None:
    mirrored.synchronise()
    shutil.rmtree(mirrored.remote / "tiny")
    mirrored.synchronise()
    assert mirrored.versions() == {"tiny": [1]}


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [("s3://b/x", "s3fs", "s3"), ("gs://b/x", "gcsfs", "gcs"), ("hf://org/x", "huggingface_hub", "hf")],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    mirror = Mirror(url, tmp_path)
    mirror.synchronise()
    (problem,) = mirror.problems
    assert module in problem
    assert problem.endswith(f"; pip install 'fused-mlp[{extra}]'")
    assert "\n" not in problem


def test_files_at_the_root_of_a_store_are_one_model(tmp_path: Path) -> None:
    lying_store.register()
    models.save(tiny_mlp(), tmp_path / "remote")
    mirror = Mirror(f"lying://{tmp_path / 'remote'}", tmp_path / "cache", single="net")
    mirror.synchronise()
    assert [m.name for m in Repository(mirror.folder).scan()] == ["net"]


def test_a_kill_in_the_middle_leaves_what_was_there(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mirrored.synchronise()
    models.save(tiny_mlp(2), mirrored.remote / "tiny" / "2")
    code = (
        "import sys; from pathlib import Path; from tests.service.stores import lying_store; lying_store.register();"
        "from fused_mlp.service.stores.mirror import Mirror; Mirror(sys.argv[1], Path(sys.argv[2])).synchronise()"
    )
    monkeypatch.setenv("LYING_STORE", "stall")
    arguments = [sys.executable, "-c", code, mirrored.url, str(mirrored.cache)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "stalled\n"
            # Another server with the same cache leaves it alone, and is not held up.
            drafts = mirrored.drafts()
            assert len(drafts) == 1
            monkeypatch.delenv("LYING_STORE")
            mirrored.mirror.recover()
            mirrored.synchronise()
            assert mirrored.drafts() == drafts
            assert mirrored.versions() == {"tiny": [1, 2]}
            assert "passed over" not in caplog.text
        finally:
            process.kill()
    assert mirrored.drafts() == drafts
    # And one that was killed while it replaced a version.
    folder = mirrored.mirror.folder / "tiny"
    (folder / "1").rename(folder / ".1.0123456789abcdef.old")
    mirrored.mirror.recover()
    assert mirrored.drafts() == []
    assert mirrored.versions() == {"tiny": [1, 2]}


def test_a_look_of_the_same_server_does_not_lose_a_fetch(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored.synchronise()
    repository = MirroredRepository(mirrored.mirror, "tiny")
    models.save(tiny_mlp(2), mirrored.remote / "tiny" / "2")
    fetching = threading.Thread(target=mirrored.synchronise)
    signatures = Repository._look

    def look(*arguments: Any) -> Any:
        fetching.start()
        fetching.join(0.2)  # it cannot end before the look does
        return signatures(*arguments)

    monkeypatch.setattr(Repository, "_look", look)
    assert repository.look()["tiny"].keys() == {1}
    fetching.join()
    assert mirrored.versions() == {"tiny": [1, 2]}
    assert mirrored.mirror.failed == 0


def test_a_cache_that_stays_locked_is_told_of(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "MAX_LOCKED_S", 0.05)
    mirrored.synchronise()
    repository = MirroredRepository(mirrored.mirror, "tiny")
    seen = repository.look()
    shutil.rmtree(mirrored.mirror.folder / "tiny")
    with (mirrored.mirror.folder / ".lock").open("ab") as lock:  # as another process does
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert repository.look() == seen
        assert "was locked by another server" in repository.problems[0]
        mirrored.synchronise()
        assert "was locked by another server" in mirrored.mirror.problems[0]
    assert mirrored.mirror.retry_in_s == 1
    mirrored.synchronise(1)
    assert repository.look().keys() == {"tiny"}
    assert repository.problems == []
    assert mirrored.mirror.retry_in_s is None


def test_what_another_server_fetched_after_the_listing_stays(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is gone from an old listing may be there again, and what has changed in it may have changed once more."""
    mirrored.synchronise()
    shutil.rmtree(mirrored.remote / "tiny" / "1")
    models.save(tiny_mlp(2), mirrored.remote / "tiny" / "2")
    other = Mirror(mirrored.url, mirrored.cache)
    listing = mirror_module.list_versions

    def list_late(*arguments: Any) -> Any:
        listed = listing(*arguments)
        monkeypatch.setattr(mirror_module, "list_versions", listing)
        for number in (1, 2):
            shutil.rmtree(mirrored.remote / "tiny" / str(number), ignore_errors=True)
            models.save(tiny_mlp(number + 2), mirrored.remote / "tiny" / str(number))
        other.synchronise()
        return listed

    monkeypatch.setattr(mirror_module, "list_versions", list_late)
    mirrored.synchronise()
    assert mirrored.versions() == {"tiny": [1, 2]}
    newest = models.load(mirrored.remote / "tiny" / "2").tensors()
    for name, value in Repository(mirrored.mirror.folder).load("tiny", 2).tensors().items():
        np.testing.assert_array_equal(value, newest[name])
    assert "another server replaced it" in mirrored.mirror.problems[0]
    mirrored.synchronise(1)
    assert mirrored.mirror.problems == []


def test_a_version_that_cannot_be_removed_holds_up_no_others(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("another", "tiny"):
        for version in ("2", "3"):
            models.save(tiny_mlp(), mirrored.remote / name / version)
    mirrored.synchronise()
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if path.parts[-2:] == ("another", "2"):
            raise PermissionError(13, "Permission denied")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    shutil.rmtree(mirrored.remote / "another")
    shutil.rmtree(mirrored.remote / "tiny" / "2")
    models.save(tiny_mlp(), mirrored.remote / "tiny" / "4")
    for _ in range(3):
        mirrored.synchronise(1)
    assert mirrored.versions() == {"another": [2], "tiny": [1, 3, 4]}
    assert not mirrored.mirror.problems
    assert caplog.text.count("cannot be renamed: Permission denied") == 1
    monkeypatch.undo()
    mirrored.synchronise(1)
    assert mirrored.versions() == {"tiny": [1, 3, 4]}


def test_a_slash_at_the_end_of_a_url_makes_no_other_cache(tmp_path: Path) -> None:
    assert Mirror("s3://b/m", tmp_path).folder == Mirror("s3://b/m/", tmp_path).folder
    assert Mirror("s3://b/m", tmp_path).folder != Mirror("s3://b/n", tmp_path).folder


def test_a_checkpoint_in_shards_is_mirrored_whole(tmp_path: Path) -> None:
    remote = tmp_path / "remote" / "net" / "1"
    remote.mkdir(parents=True)
    tensors = {"fc1.weight": np.ones((8, 4), np.float32), "fc2.weight": np.ones((3, 8), np.float32)}
    files = {name: f"model-{number}-of-2.safetensors" for number, name in enumerate(tensors, 1)}
    for name, file in files.items():
        save_file({name: tensors[name]}, remote / file)
    (remote / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (remote / "model.json").write_text(json.dumps({"format": "safetensors/1", "activation": "relu"}))
    (remote / "README.md").write_text("not part of it")
    mirror = Mirror(f"lying://{tmp_path / 'remote'}", tmp_path / "cache")
    mirror.synchronise()
    assert Repository(mirror.folder).load("net").spec.in_features == 4
    assert not list(mirror.folder.rglob("README.md"))
