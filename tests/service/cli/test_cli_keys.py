# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp keys`: prints a key once, keeps its digest only, and puts every change on record."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import stat
from pathlib import Path

import pytest

from fused_mlp.service.access.key_file import read_key_file


def test_a_key_is_printed_once_and_kept_as_its_digest(cli, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    outcome = cli(
        "keys", "new", "checkout", "-f", file, "--models", "rank*,digits", "--actions", "predict",
        "--expires-in", "90d", "--requests-per-s", "5", "--rows-per-s", "50", "--max-in-flight", "7", "--weight", "2",
    )  # fmt: skip
    assert outcome.code == 0
    key = outcome.out.strip()
    assert len(key) >= 43
    (entry,) = read_key_file(file).callers
    assert entry.sha256 == hashlib.sha256(key.encode()).hexdigest()
    assert (entry.models, entry.actions) == (("rank*", "digits"), ("predict",))
    assert (entry.requests_per_s, entry.rows_per_s, entry.max_in_flight, entry.weight) == (5, 50, 7, 2)
    assert entry.expires is not None
    assert not entry.expired
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    listed = cli("keys", "list", "-f", file)
    for text in ("checkout", entry.key_id, "rank*, digits", "requests_per_s 5"):
        assert text in " ".join(listed.out.split())
    assert key not in listed.out + file.read_text()


def test_one_of_two_keys_is_revoked_by_its_id_and_all_by_the_name(cli, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    first, second = (json.loads(cli("keys", "new", "checkout", "-f", file, "--json").out) for _ in range(2))
    cli("keys", "new", "other", "-f", file)
    assert cli("keys", "revoke", first["id"], "-f", file).out == f"revoked checkout {first['id']}\n"
    assert [entry.key_id for entry in read_key_file(file).callers][:1] == [second["id"]]
    assert cli("keys", "revoke", "checkout", "-f", file).code == 0
    assert [entry.name for entry in read_key_file(file).callers] == ["other"]
    missing = cli("keys", "revoke", "checkout", "-f", file)
    assert missing.code == 1
    assert "expected the name of a caller or the id of a key, got 'checkout'" in missing.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a b"], "NAME: "),
        (["a", "--actions", "fly"], "--actions: "),
        (["a", "--weight", "0"], "--weight: "),
        (["a", "--expires-in", "soon"], "--expires-in: expected a time such as 30s"),
    ],
)
def test_a_mistake_is_one_line_and_makes_no_key(cli, tmp_path: Path, arguments: list[str], text: str) -> None:
    refused = cli("keys", "new", *arguments, "-f", tmp_path / "keys.json")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert text in refused.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_full_is_one_line(cli, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    callers = [{"name": "a", "subjects": [f"team-{number}"]} for number in range(1000)]
    file.write_text(json.dumps({"callers": callers}))
    full = cli("keys", "new", "b", "-f", file)
    assert (full.code, full.out) == (1, "")
    assert full.err.strip().count("\n") == 0
    assert "keys.json: callers: tuple should have at most 1000 items" in full.err
    assert "team-" not in full.err


def test_no_name_revokes_no_key(cli, tmp_path: Path) -> None:
    """A variable of a script that is not set; callers without a key have no id."""
    file = tmp_path / "keys.json"
    file.write_text('{"callers": [{"name": "by-proxy", "subjects": ["team/*"]}]}')
    assert cli("keys", "revoke", "", "-f", file).code == 1
    assert [entry.name for entry in read_key_file(file).callers] == ["by-proxy"]


def test_the_audit_log_names_the_user_of_the_process(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the environment; a container may run as a user without a name."""
    log = tmp_path / "audit.jsonl"
    monkeypatch.setenv("FUSED_MLP_AUDIT_LOG", str(log))
    monkeypatch.setenv("LOGNAME", "mallory")
    assert cli("keys", "new", "a", "-f", tmp_path / "keys.json").code == 0
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    own = pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.setattr(os, "getuid", lambda: 123_456_789)
    made = cli("keys", "new", "b", "-f", tmp_path / "keys.json")
    assert (made.code, made.out[:4]) == (0, "fmk_")
    who = [json.loads(line)["who"] for line in log.read_text().splitlines()]
    assert who == [f"user:{own}", "user:123456789"]


def test_changes_are_in_the_audit_log_without_the_key(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSED_MLP_AUDIT_LOG", str(tmp_path / "audit.log"))
    made = json.loads(cli("keys", "new", "checkout", "-f", tmp_path / "keys.json", "--json").out)
    cli("keys", "revoke", "nobody", "-f", tmp_path / "keys.json")
    cli("keys", "revoke", "checkout", "-f", tmp_path / "keys.json")
    text = (tmp_path / "audit.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["action"], line["arguments"], line["result"]) for line in lines] == [
        ("new_key", f"checkout {made['id']}", "OK"),
        ("revoke_key", "nobody", "FAILED_PRECONDITION"),
        ("revoke_key", "checkout", "OK"),
    ]
    assert all(line["who"].startswith("user:") for line in lines)
    assert made["key"] not in text
