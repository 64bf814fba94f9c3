"""Policies that are changed while the server runs: their layers, and the file that keeps them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fused_mlp.service.catalog.policies import Policies, policy_file, read_changes, write_changes
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.settings.settings import load_settings


def test_changes_go_before_settings_and_later_ones_before_earlier_ones() -> None:
    settings = load_settings(split=0.1, policy='{"a": {"weight": 2}, "*": {"split": 0.2}}')
    policies = Policies(settings)
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
    assert read_changes(path) == {}
    canary = {"to": "3", "steps": (1, 100)}
    policies = Policies(load_settings()).changed({"arms": {"3/fused": 0.5}, "labels": {"stable": 2}}, "m")
    policies = policies.changed({"canary": canary}, "n").changed({"variant": "unfused"})
    write_changes(path, policies.changes)
    again = Policies(load_settings(), read_changes(path))
    assert again == policies
    assert [again.of(name) for name in ("m", "n", "o")] == [policies.of(name) for name in ("m", "n", "o")]
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy.json"]


KILLED = """
import os, sys
from pathlib import Path
from fused_mlp.service.catalog import policies
policies.os.replace = lambda *_: os.kill(os.getpid(), 9)
policies.write_changes(Path(sys.argv[1]), {"m": {"split": 0.9}})
"""


def test_a_write_that_is_killed_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    write_changes(path, {"m": {"split": 0.1}})
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert read_changes(path) == {"m": {"split": 0.1}}
    write_changes(path, {"m": {"split": 0.2}})
    assert read_changes(path) == {"m": {"split": 0.2}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"m": ', "expected JSON"),
        ("[]", "expected a valid dictionary"),
        ('{"m": {"splt": 1}}', "m.splt: expected"),
        ('{"m": {"split": 2}}', "m.split: expected less than or equal to 1, got 2"),
        ('{"m": {"labels": {"fused": 1}}}', "a label of a to z"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        read_changes(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


def test_the_file_lies_in_the_repository_unless_a_setting_says_otherwise(tmp_path: Path) -> None:
    assert policy_file(load_settings()) is None  # the demo
    assert policy_file(load_settings(model_repository=tmp_path)) == tmp_path / "policy.json"
    assert policy_file(load_settings(model_repository="s3://bucket/models")) is None
    elsewhere = tmp_path / "elsewhere.json"
    assert policy_file(load_settings(policy_file=elsewhere, model_repository=tmp_path)) == elsewhere
