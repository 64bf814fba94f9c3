# SPDX-License-Identifier: Apache-2.0
"""Policies that are changed while the server runs: their layers, and the file that keeps them."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fused_mlp.service import atomic_file
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.policy.file import PolicyFile, PolicyFileError
from fused_mlp.service.policy.policies import FieldsByModel
from fused_mlp.service.settings.environment import load_settings


def test_changes_go_before_settings_and_later_ones_before_earlier_ones() -> None:
    settings = load_settings(split=0.1, policy='{"a": {"weight": 2}, "*": {"split": 0.2}}')
    policies = settings.policies
    assert (policies.default.split, policies.of("a").split, policies.of("a").weight) == (0.2, 0.2, 2)
    policies = policies.changed({"weight": 3, "split": 0.5}, "a").changed({"weight": 4})
    assert (policies.of("a").weight, policies.of("a").split) == (4, 0.5)
    assert (policies.of("b").weight, policies.of("b").split) == (4, 0.2)
    assert policies.of("b") is policies.default
    assert policies.changes == {"a": {"split": 0.5}, "*": {"weight": 4.0}}
    assert policies.named == {"a"}
    with pytest.raises(InvalidInput, match="split or arms, not both"):
        policies.changed({"arms": {"2": 0.1}}, "a").of("a")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    assert PolicyFile(path).read() == {}
    canary = {"to": "3", "steps": (1, 100)}
    policies = load_settings().policies.changed({"arms": {"3/fused": 0.5}, "labels": {"stable": 2}}, "m")
    policies = policies.changed({"canary": canary}, "n").changed({"variant": "unfused"})
    write(path, policies.changes)
    again = load_settings().policies.with_changes(PolicyFile(path).read())
    assert again == policies
    assert [again.of(name) for name in ("m", "n", "o")] == [policies.of(name) for name in ("m", "n", "o")]
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy.json"]


def write(path: Path, changes: FieldsByModel) -> None:
    file = PolicyFile(path)
    with file.locked():
        file.write(changes)


KILLED = """
import os, sys
from pathlib import Path
from fused_mlp.service.policy.file import PolicyFile
os.replace = lambda *_: os.kill(os.getpid(), 9)
PolicyFile(Path(sys.argv[1])).write({"m": {"split": 0.9}})
"""


def test_a_write_that_is_killed_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    write(path, {"m": {"split": 0.1}})
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert PolicyFile(path).read() == {"m": {"split": 0.1}}
    write(path, {"m": {"split": 0.2}})
    assert PolicyFile(path).read() == {"m": {"split": 0.2}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"m": ', "expected JSON"),
        ("[]", "expected a valid dictionary"),
        ('{"m": {"splt": 1}}', "m.splt: no such field; did you mean split?"),
        ('{"m": {"canary": {"to": "2", "stps": [1]}}}', "m.canary.stps: no such field; did you mean steps?"),
        ('{"m": {"canary": {}}}', "m.canary.to: expected a value, got none"),
        ('{"m": {"arms": {"3/fast": 1}}}', "expected a version or a label, a variant, or both"),
        ('{"m": {"split": 2}}', "m.split: expected less than or equal to 1, got 2"),
        ('{"m": {"labels": {"fused": 1}}}', "a label of a to z"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        PolicyFile(path).read()
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


def test_values_of_a_file_are_cut_and_its_path_is_named(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    for written, words in (
        (b'{"m": {"variant": "' + 5000 * b"x" + b'"}}', "m.variant: expected 'fused' or 'unfused', got 'xxx"),
        (b'{"m": {"arms": {"' + 5000 * b"/" + b'": 1}}}', "expected a version or a label"),
        (b'{"m": "\xff"}', "expected UTF-8: invalid start byte at byte 7"),
        (json.dumps({key: {"split": 2} for key in range(99)}).encode(), "; and 94 more"),
        (b" " * ((1 << 20) + 1), "expected at most 1,048,576 bytes, got more"),
    ):
        path.write_bytes(written)
        with pytest.raises(ValueError, match=re.escape(words)) as refused:
            PolicyFile(path).read()
        assert str(refused.value).startswith(f"{path}: ")
        assert len(str(refused.value)) < len(str(path)) + 500


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ValueError, match=f"{path}: expected a regular file"):
            PolicyFile(path).read()


def test_a_link_is_written_through(tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap: a link to a file in a folder that is a link."""
    (tmp_path / "..1").mkdir()
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "policy.json").symlink_to("..data/policy.json")
    write(tmp_path / "policy.json", {"m": {"split": 0.1}})
    assert (tmp_path / "policy.json").is_symlink()
    assert PolicyFile(tmp_path / "..1" / "policy.json").read() == {"m": {"split": 0.1}}


def test_a_file_that_is_read_only_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text("{}")
    path.chmod(0o444)
    with pytest.raises(PolicyFileError, match=f"{path} is read-only"):
        write(path, {"m": {"split": 0.1}})
    assert path.read_text() == "{}"
    path.chmod(0o600)
    write(path, {"m": {"split": 0.1}})
    assert path.stat().st_mode & 0o777 == 0o600


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"

    def add(name: str) -> None:
        file = PolicyFile(path)
        with file.locked():
            file.write({**file.read(), name: {"split": 0.5}})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, map(str, range(64))))
    assert len(PolicyFile(path).read()) == 64


def test_a_lock_that_is_held_for_ever_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_file, "MAX_WAIT_S", 0.0)
    holder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(PolicyFileError, match="another process holds its lock"):
            write(tmp_path / "policy.json", {"m": {"split": 0.1}})
    finally:
        os.close(holder)


def test_the_file_is_in_the_repository_unless_a_setting_names_another(tmp_path: Path) -> None:
    def path(**settings: object) -> Path | None:
        return load_settings(**settings).policy_path(tmp_path / "cache" / "0123")

    assert path() is None  # the demo
    assert path(model_repository=tmp_path) == tmp_path / "policy.json"
    # Of a store beside the folder that mirrors it: what is fetched must not replace it.
    assert path(model_repository="s3://bucket/models") == tmp_path / "cache" / "0123.policy.json"
    elsewhere = tmp_path / "elsewhere.json"
    assert path(policy_file=elsewhere, model_repository=tmp_path) == elsewhere
