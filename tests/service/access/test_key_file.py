# SPDX-License-Identifier: Apache-2.0
"""The file of keys, and what its rules mean."""

from __future__ import annotations

import hashlib
import json
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fused_mlp.service import _engine
from fused_mlp.service.access.key_file import CallerEntry, KeyFile, changing, new_key, read_key_file


def callers_of(*entries: CallerEntry, proxies: tuple[str, ...] = ()) -> _engine.Callers:
    file = KeyFile(callers=entries, proxies=proxies)
    callers = _engine.Callers()
    callers.publish([entry.rules() for entry in entries], file.networks(), file.proxy_names)
    return callers


def identify(
    callers: _engine.Callers,
    key: str | None = None,
    *,
    subject: str | None = None,
    names: tuple[str, ...] = (),
    address: str = "192.0.2.1:1",
) -> str:
    """The name of the caller, else the reason."""
    found = callers.identify(key=key, subject=subject, certificate_names=names, peer_address=address)
    return found.caller.name if found.caller else found.text


def keyed(name: str, key: str, **rules: object) -> CallerEntry:
    digest = hashlib.sha256(key.encode()).hexdigest()
    return CallerEntry.model_validate({"name": name, "sha256": digest, **rules})


@pytest.mark.parametrize("size", [0, 1, 54, 55, 56, 63, 64, 65, 119, 120, 128, 256])
def test_a_key_of_any_size_is_found_by_its_sha256(size: int) -> None:
    key = "k" * size
    callers = callers_of(keyed("a", key))
    assert identify(callers, key) == "a"
    assert "got another one" in identify(callers, key + "x")


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        ("*", ["", "digits", "a/b"], []),
        ("digits", ["digits"], ["", "digits2", "digit", "Digits"]),
        ("rank*-v?", ["rank-v1", "ranker-x-v-v2"], ["rank-v", "rank-v12", "xrank-v1"]),
        ("*a*b*", ["ab", "xaxbx", "aab"], ["ba", "a", ""]),
    ],
)
def test_models_match_patterns(pattern: str, allowed: list[str], refused: list[str]) -> None:
    callers = callers_of(keyed("a", "k", models=[pattern], actions=["predict"]))
    (caller,) = callers.all()
    for model in allowed:
        assert caller.allows(_engine.Action.predict, model)
        assert not caller.allows(_engine.Action.describe, model)
    assert not any(caller.allows(_engine.Action.predict, model) for model in refused)


def test_only_wrong_keys_of_an_address_have_to_wait() -> None:
    callers = callers_of(keyed("a", "k"))
    reasons = {identify(callers, f"guess-{i}") for i in range(60)}
    assert any("too many wrong keys" in reason for reason in reasons)
    assert identify(callers, "k") == "a"
    assert "too many wrong keys" in identify(callers, "another")
    assert "got another one" in identify(callers, "another", address="192.0.2.2:1")


def test_a_valid_key_goes_before_a_certificate_and_a_wrong_one_does_not_undo_it() -> None:
    by_name = CallerEntry(name="by-name", certificates=("CN:ops",))
    callers = callers_of(keyed("by-key", "k"), by_name)
    assert identify(callers, "k", names=("CN:ops",)) == "by-key"
    assert identify(callers, "wrong", names=("DNS:x", "CN:ops")) == "by-name"
    assert identify(callers, names=("CN:ops",)) == "by-name"
    assert identify(callers, names=("CN:other",)) == "this caller is not listed"


@pytest.mark.parametrize(
    ("proxy", "address", "names", "believed"),
    [
        ("10.1.0.0/16", "10.1.2.3:4", (), True),
        ("10.1.0.0/16", "10.2.2.3:4", (), False),
        ("10.1.0.0/16", "[::ffff:10.1.2.3]:4", (), True),
        ("10.1.128.0/17", "10.1.127.3:4", (), False),
        ("10.1.2.3", "10.1.2.3:4", (), True),
        ("fd00::/8", "[fd12::1]:4", (), True),
        ("fd00::/8", "[fe12::1]:4", (), False),
        ("::/0", "", (), True),
        ("URI:spiffe://x/envoy", "192.0.2.1:4", ("URI:spiffe://x/envoy",), True),
        ("URI:spiffe://x/envoy", "192.0.2.1:4", ("CN:spiffe://x/envoy",), False),
    ],
)
def test_a_name_is_believed_from_named_proxies(
    proxy: str, address: str, names: tuple[str, ...], believed: bool
) -> None:
    callers = callers_of(CallerEntry(name="team", subjects=("a/*",)), proxies=(proxy,))
    assert (identify(callers, subject="a/ann", address=address, names=names) == "team") == believed
    assert identify(callers, subject="b/bob", address=address, names=names) != "team"


@pytest.mark.parametrize(
    "expires", ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00.5Z", "0001-01-01T00:00:00+14:00"]
)
def test_a_key_that_expired_at_any_time_is_refused(expires: str) -> None:
    """0 seconds stand for no expiry in C++."""
    assert "has expired" in identify(callers_of(keyed("a", "k", expires=expires)), "k")


def test_what_a_caller_has_used_survives_new_rules() -> None:
    callers = callers_of(keyed("a", "k", max_in_flight=1))
    (caller,) = callers.all()
    caller.admit(3)
    with pytest.raises(_engine.Refused, match="in_flight"):
        caller.admit(1)
    callers.publish([keyed("a", "other", max_in_flight=2).rules()], [], [])
    (renewed,) = callers.all()
    renewed.admit(1)
    with pytest.raises(_engine.Refused, match="in_flight"):
        renewed.admit(1)
    caller.release()
    renewed.admit(1)
    assert renewed.usage() == {
        "requests": 3,
        "rows": 5,
        "refused": {"not_allowed": 0, "requests_per_s": 0, "rows_per_s": 0, "in_flight": 2},
    }


def test_a_request_larger_than_a_second_of_rows_is_admitted_and_paid_for_afterwards() -> None:
    (caller,) = callers_of(keyed("a", "k", rows_per_s=10)).all()
    caller.admit(100)
    with pytest.raises(_engine.Refused) as refused:
        caller.admit(1)
    assert 8000 < refused.value.retry_after_ms <= 9101  # 101 rows in all, 10 of them at once
    assert refused.value.status is _engine.Status.overloaded


def test_the_rate_over_time_is_the_quota() -> None:
    """A second's worth is there at the start, so the next one takes a second, however busy the machine is."""
    (caller,) = callers_of(keyed("a", "k", requests_per_s=200)).all()
    admitted, began = 0, time.monotonic()
    while admitted < 400:
        try:
            caller.admit(1)
            admitted += 1
        except _engine.Refused as refused:
            assert refused.retry_after_ms <= 6  # 5 ms for each request
    assert time.monotonic() - began > 0.99


def test_changes_are_written_in_one_step_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"proxies": ["10.0.0.1"]}))
    key, digest = new_key()

    def add(number: int) -> None:
        with changing(path) as callers:
            callers.append(keyed(f"caller-{number}", f"{key}{number}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(16)))
    file = read_key_file(path)
    assert {entry.name for entry in file.callers} == {f"caller-{i}" for i in range(16)}
    assert file.proxies == ("10.0.0.1",)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key not in path.read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.json"]
    assert len(digest) == 64


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with changing(path) as callers:
        callers.append(keyed("a", "k"))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="each sha256 once"), changing(path) as callers:
        callers.append(keyed("b", "k"))
    assert path.read_bytes() == before
