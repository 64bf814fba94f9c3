# SPDX-License-Identifier: Apache-2.0
"""The file of keys together with the lists of FUSED_MLP_CALLERS."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fused_mlp.service._engine import Action, Caller
from fused_mlp.service.access.access import Access
from fused_mlp.service.settings.settings import Settings, SettingsError

DIGEST = hashlib.sha256(b"k").hexdigest()


def access_of(tmp_path: Path, entries: list[dict[str, Any]], admin: str = "") -> Access:
    keys, listed = tmp_path / "keys.json", tmp_path / "admin"
    keys.write_text(json.dumps({"callers": entries}))
    listed.write_text(admin)
    settings = Settings.model_construct(
        keys=keys,
        tls_client_ca=tmp_path / "ca.pem",
        callers=Settings().callers.model_copy(update={"admin": listed if admin else None}),
    )
    return Access(settings)


@pytest.mark.parametrize(
    ("keys_on", "host", "asks"),
    [(True, "0.0.0.0", True), (True, "127.0.0.1", False), (True, "::1", False), (False, "0.0.0.0", False)],
)
def test_keys_close_a_metrics_port_that_others_can_reach(
    tmp_path: Path, keys_on: bool, host: str, asks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [{"name": "a", "sha256": DIGEST}, {"name": "s", "sha256": "0" * 64, "actions": ["metrics"]}]
    (tmp_path / "keys.json").write_text(json.dumps({"callers": entries}))
    with caplog.at_level("INFO"):
        access = Access(Settings(keys=tmp_path / "keys.json" if keys_on else None, metrics_host=host))
    assert access.asks(Action.metrics) == asks
    assert access.may_read_metrics({}, "192.0.2.1:1") == (not asks)
    assert access.may_read_metrics({"x-api-key": "k"}, "192.0.2.1:1") == (not asks)
    assert ("it asks for keys with the action metrics" in caplog.text) == asks


def caller(access: Access, key: str | None = None, *names: str) -> Caller:
    found = access.identify({"x-api-key": key} if key else {}, names, "192.0.2.1:1").caller
    assert found is not None
    return found


@pytest.mark.parametrize(
    "fields", [{"certificates": ["CN:ops"]}, {"subjects": ["team/*"]}], ids=["certificate", "subject"]
)
def test_a_name_in_two_entries_of_the_file_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    entries = [{"name": "a", "models": ["x"], **fields}, {"name": "b", "actions": ["admin"], **fields}]
    (name,) = fields
    with pytest.raises(SettingsError, match=f"expected each {name.removesuffix('s')} once"):
        access_of(tmp_path, entries)


def test_a_list_adds_its_action_to_the_name_that_it_holds_and_nothing_else(tmp_path: Path) -> None:
    entry = {
        "name": "a",
        "sha256": DIGEST,
        "certificates": ["CN:ops", "CN:dev"],
        "models": ["x"],
        "actions": ["predict"],
    }
    access = access_of(tmp_path, [entry], "CN:ops\nCN:new\n")
    operator = caller(access, None, "CN:ops")
    assert operator.name == "a"
    assert operator.allows(Action.predict, "x")
    assert operator.allows(Action.admin, "x")
    assert not operator.allows(Action.admin, "y")
    for other in (caller(access, "k"), caller(access, None, "CN:dev")):
        assert other.name == "a"
        assert other.allows(Action.predict, "x")
        assert not other.allows(Action.admin, "x")
    assert caller(access, None, "CN:new").allows(Action.admin, "y")


def test_a_list_does_not_prolong_an_entry(tmp_path: Path) -> None:
    entry = {"name": "a", "sha256": DIGEST, "expires": "2020-01-01T00:00:00Z"}
    access = access_of(tmp_path, [entry], f"sha256:{DIGEST}\n")
    found = access.identify({"x-api-key": "k"}, (), "192.0.2.1:1")
    assert found.caller is None
    assert "expired" in found.text
