# SPDX-License-Identifier: Apache-2.0
"""The file that keeps policies, beside what is in force and what the settings say."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fused_mlp.models import ModelLoadError, save
from fused_mlp.service.access.reloading import Reload
from fused_mlp.service.app import Service
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.errors import InvalidInput, Unsupported
from fused_mlp.service.observe.model_metrics import ModelMetrics
from fused_mlp.service.settings.policy import Policy
from fused_mlp.service.settings.settings import load_settings
from tests.support.fleet import make_fleet, tiny_mlp
from tests.support.server import sum_metric


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    make_fleet(tmp_path, 2)
    service = Service(load_settings(model_repository=tmp_path))
    service.catalog.scan()
    service.catalog.load_all()
    yield service
    service.close()


@pytest.fixture
def catalog(service: Service) -> Catalog:
    return service.catalog


def test_a_file_that_contradicts_the_settings_is_refused_in_one_line(tmp_path: Path) -> None:
    make_fleet(tmp_path, 1)
    (tmp_path / "policy.json").write_text('{"m000": {"arms": {"1/unfused": 0.5}}}')
    service = Service(load_settings(model_repository=tmp_path, policy='{"*": {"split": 0.5}}'))
    with pytest.raises(ModelLoadError) as refused:
        service.catalog.scan()
    service.close()
    assert str(refused.value) == (
        f"{tmp_path}/policy.json: m000: expected split or arms, not both: the other variant is an arm too"
    )


def test_a_policy_for_all_fits_models_that_are_away(catalog: Catalog, tmp_path: Path) -> None:
    catalog.set_policy({"arms": {"1/unfused": 0.5}}, "m001")
    (tmp_path / "m001").rename(tmp_path / ".away")
    catalog.refresh("m001")
    with pytest.raises(InvalidInput, match=r"^m001: expected split or arms, not both"):
        catalog.set_policy({"split": 0.5})
    assert catalog.policy("m000").split == 0
    (tmp_path / ".away").rename(tmp_path / "m001")
    catalog.refresh("m001")
    assert catalog.get("m001").policy.arms == {"1/unfused": 0.5}


def test_policies_that_cannot_be_written_stay_until_the_file_changes(tmp_path: Path) -> None:
    make_fleet(tmp_path, 1)
    file = tmp_path / "later" / "policy.json"
    service = Service(load_settings(model_repository=tmp_path, policy_file=file))
    catalog = service.catalog
    catalog.scan()
    catalog.load_all()
    catalog.set_policy({"weight": 2}, "m000")
    catalog.policies.read()  # as SIGHUP does
    assert catalog.policy("m000").weight == 2
    file.parent.mkdir()
    file.write_text('{"m000": {"weight": 3}}')
    catalog.policies.read()
    service.close()
    assert catalog.policy("m000").weight == 3


def test_a_look_at_the_file_before_a_change_is_written_takes_nothing_back(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, keep = [catalog.policies.read], catalog.policies._keep
    monkeypatch.setattr(catalog.policies, "_keep", lambda marks: (looks.pop()(), keep(marks)))
    catalog.set_policy({"versions": "latest:1"}, "m000")
    assert not looks
    assert catalog.policy("m000").versions == "latest:1"
    catalog.policies.read()
    assert catalog.policy("m000").versions == "latest:1"


def test_a_file_of_others_is_read_beside_a_change_that_is_not_written_yet(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = catalog.policies
    keep, path = policies._keep, policies.file.path
    assert path is not None

    def read_before(marks: list[tuple[str, str]]) -> None:
        path.write_text('{"m000": {"weight": 5, "shadow_tolerance": 0.5}, "m001": {"weight": 5}}')
        assert policies.read()
        keep(marks)

    monkeypatch.setattr(policies, "_keep", read_before)
    catalog.set_policy({"weight": 2}, "m000")
    assert [catalog.policy(name).weight for name in ("m000", "m001")] == [2, 5]
    assert policies.file.read() == {
        "m000": {"weight": 2, "shadow_tolerance": 0.5},
        "m001": {"weight": 5},
    }


def test_a_change_that_is_kept_while_a_file_of_others_is_loaded_stays(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = catalog.policies
    load, path = policies._load, policies.file.path
    assert path is not None

    def load_slowly(name: str, policy: Policy) -> None:
        load(name, policy)
        catalog.set_policy({"weight": 5}, "m001")  # another caller, who has the answer before the load ends

    monkeypatch.setattr(policies, "_load", load_slowly)
    path.write_text('{"m000": {"versions": "latest:1"}}')
    assert policies.read()
    assert (catalog.policy("m000").versions, catalog.policy("m001").weight) == ("latest:1", 5)
    assert not policies.read()
    assert policies.file.read() == {"m000": {"versions": "latest:1"}, "m001": {"weight": 5}}


def test_a_change_that_cannot_be_written_while_the_file_is_read_is_with_the_next_one(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = catalog.policies
    retire, path = policies._retire, policies.file.path
    assert path is not None

    def change(name: str) -> None:
        path.chmod(0o444)
        catalog.set_policy({"weight": 5}, "m001")  # after the new policies are in force
        path.chmod(0o644)
        retire(name)

    monkeypatch.setattr(policies, "_retire", change)
    path.write_text('{"m000": {"versions": "latest:1"}}')
    assert policies.read()
    assert policies.not_kept == f"{path} is read-only"
    catalog.set_policy({"weight": 2}, "m000")
    assert policies.file.read()["m001"] == {"weight": 5}


def test_only_what_others_write_counts_as_read(catalog: Catalog, caplog: pytest.LogCaptureFixture) -> None:
    assert catalog.policies.file.path is not None
    caplog.set_level("INFO")
    reload = Reload("policy", [catalog.policies.file.path], catalog.policies.read)
    catalog.set_policy({"weight": 2}, "m000")
    reload.poll()
    reload.reload()
    assert reload.results == {"ok": 0, "failed": 0}
    assert "read again" not in caplog.text
    catalog.policies.file.path.write_text('{"m000": {"weight": 3}}')
    reload.poll()
    assert reload.results == {"ok": 1, "failed": 0}
    assert catalog.policy("m000").weight == 3


def start(root: Path, **settings: object) -> Service:
    service = Service(load_settings(model_repository=root, **settings))
    service.catalog.scan()
    service.catalog.load_all()
    return service


def test_two_servers_keep_each_others_changes(service: Service, tmp_path: Path) -> None:
    other = start(tmp_path)
    try:
        service.catalog.set_policy({"weight": 2}, "m000")
        other.catalog.set_policy({"weight": 3}, "m001")
        service.catalog.set_policy({"shadow_tolerance": 0.5}, "m000")
        for each in (service, other):
            each.catalog.policies.read()  # as a look at the file does, every 2 s
            assert [each.catalog.policy(name).weight for name in ("m000", "m001", "m002")] == [2, 3, 1]
        other.catalog.set_policy({"weight": 4})
        service.catalog.policies.read()
        policies = [service.catalog.policy(name) for name in ("m000", "m001")]
        assert [(policy.weight, policy.shadow_tolerance) for policy in policies] == [(4, 0.5), (4, None)]
    finally:
        other.close()


def test_a_file_that_is_half_written_is_not_overwritten(catalog: Catalog) -> None:
    path = catalog.policies.file.path
    assert path is not None
    catalog.set_policy({"weight": 2}, "m000")
    path.write_text('{"m000": {"weig')
    with pytest.raises(Unsupported, match=f"nothing was changed: first mend {path}: expected JSON"):
        catalog.set_policy({"weight": 3}, "m000")
    assert catalog.policy("m000").weight == 2
    assert path.read_text() == '{"m000": {"weig'
    path.write_text('{"m000": {"split": 0.5}}')  # not read yet
    with pytest.raises(InvalidInput, match="split or arms, not both"):
        catalog.set_policy({"arms": {"1/unfused": 0.5}}, "m000")
    catalog.set_policy({"weight": 3}, "m000")
    catalog.policies.read()
    assert (catalog.policy("m000").weight, catalog.policy("m000").split) == (3, 0.5)


def test_what_could_not_be_written_is_with_the_next_change(catalog: Catalog) -> None:
    path = catalog.policies.file.path
    assert path is not None
    path.write_text("{}")
    path.chmod(0o444)
    catalog.set_policy({"weight": 2}, "m000")
    assert catalog.policies.not_kept == f"{path} is read-only"
    path.chmod(0o644)
    catalog.set_policy({"shadow_tolerance": 0.5}, "m001")
    assert catalog.policies.not_kept == ""
    assert catalog.policies.file.read() == {"m000": {"weight": 2}, "m001": {"shadow_tolerance": 0.5}}


def test_changes_of_a_server_of_a_store_outlive_it(tmp_path: Path) -> None:
    make_fleet(tmp_path / "remote", 1)
    settings = {"repository_cache": tmp_path / "cache"}
    for weight in (1, 2):
        service = Service(load_settings(model_repository=f"file://{tmp_path}/remote", **settings))
        service.reloader.prepare()
        asyncio.run(service.reloader.fetch_first())
        service.catalog.scan()
        service.catalog.load_all()
        assert service.catalog.policy("m000").weight == weight
        service.catalog.set_policy({"weight": 2}, "m000")
        service.close()
        assert service.catalog.policies.not_kept == ""


def test_changes_are_taken_back(tmp_path: Path) -> None:
    make_fleet(tmp_path, 2)
    service = start(tmp_path, policy='{"m000": {"weight": 5}}')
    try:
        catalog, policies = service.catalog, service.catalog.policies
        catalog.set_policy({"weight": 2, "shadow_tolerance": 0.5}, "m000")
        catalog.set_policy({"shadow_tolerance": 0.25}, "m001")
        policies.unset(["weight"], "m000")
        assert (catalog.policy("m000").weight, catalog.policy("m000").shadow_tolerance) == (5, 0.5)
        assert policies.file.read() == {
            "m000": {"shadow_tolerance": 0.5},
            "m001": {"shadow_tolerance": 0.25},
        }
        policies.unset(["shadow_tolerance"])
        assert catalog.policy("m001").shadow_tolerance is None
        assert policies.file.read() == {}
        with pytest.raises(InvalidInput, match=r"unset: expected some of version, .*, got splt"):
            policies.unset(["splt"], "m000")
    finally:
        service.close()


def test_names_that_mean_nothing_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_fleet(tmp_path, 1)
    own = {"version": "7", "labels": {"old": 9}, "arms": {"8": 0.5}, "shadow_arm": "next", "versions": "1,6"}
    (tmp_path / "policy.json").write_text(json.dumps({"m000": own, "m0000": {"weight": 2}}))
    service = start(tmp_path)
    try:
        told = [(record.levelname, record.getMessage()) for record in caplog.records]
        assert told == [
            ("ERROR", "policy of m000, version: version 7 is not there: version 1 answers"),
            ("WARNING", "policy of m000, versions: there is no version 6"),
            ("WARNING", "policy of m000, labels: old: there is no version 9"),
            ("WARNING", "policy of m000, arms: 8: there is no such version"),
            ("WARNING", "policy of m000, shadow_arm: next: there is no such version"),
            ("WARNING", "the policy file names 'm0000', which is not served here; did you mean 'm000'?"),
        ]
        caplog.clear()
        service.catalog.refresh("m000")
        service.catalog.set_policy({"weight": 2}, "m000")
        assert caplog.text == ""
        metrics = b"".join(
            ModelMetrics(service.engine, service.catalog, service.meter, 8192, "none").text()
        ).decode()
        for field, count in {"version": 1, "arms": 1, "canary": 0}.items():
            labels = {"model": "m000", "field": field}
            assert sum_metric(metrics, "fused_mlp_policy_unknown", labels) == count
        assert sum_metric(metrics, "fused_mlp_default_version", {"model": "m000"}) == 1
    finally:
        service.close()


def test_a_pinned_version_that_goes_is_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for version in (1, 2):
        save(tiny_mlp(version), tmp_path / "m" / str(version))
    service = start(tmp_path)
    try:
        service.catalog.set_policy({"version": "2"}, "m")
        shutil.rmtree(tmp_path / "m" / "2")
        service.catalog.refresh("m")
        (told,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        assert told == "policy of m, version: version 2 is not there: version 1 answers"
    finally:
        service.close()


def test_a_change_is_logged_as_a_difference(catalog: Catalog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    catalog.set_policy({"weight": 2, "version": "1"}, "m000", by="a test")
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "policy of m000 changed by a test: weight 2, version '1'",
        "policy of m000: version 'latest' -> '1', weight 1.0 -> 2.0",
    ]
