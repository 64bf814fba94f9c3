# SPDX-License-Identifier: Apache-2.0
"""The file that keeps policies, beside what is in force and what the settings say."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path

import pytest

from fused_mlp.models import ModelLoadError, save
from fused_mlp.service.access.reloading import Reload
from fused_mlp.service.app import Service
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.errors import InvalidInput, Unsupported
from fused_mlp.service.observe.scrape.model_metrics import ModelMetrics
from fused_mlp.service.policy.policies import FieldsByModel
from fused_mlp.service.policy.policy import Policy
from fused_mlp.service.policy.rollout.pins import pin
from fused_mlp.service.settings.environment import load_settings
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


def path_of(catalog: Catalog) -> Path:
    assert catalog.policies.file is not None
    return catalog.policies.file.path


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


def test_a_change_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    make_fleet(tmp_path, 1)
    file = tmp_path / "later" / "policy.json"
    service = start(tmp_path, policy_file=file)
    catalog = service.catalog

    def refused(text: str) -> None:
        with pytest.raises(Unsupported) as error:
            catalog.set_policy({"weight": 2}, "m000")
        assert str(error.value) == f"policy unchanged: fix the policy file first: {file}{text}"
        assert catalog.policy("m000").weight == 1
        assert not catalog.policies.history

    try:
        refused(": No such file or directory")
        file.parent.mkdir()
        file.write_text("{}")
        file.chmod(0o444)
        refused(" is read-only")
        assert file.read_text() == "{}"
        file.chmod(0o644)
        catalog.set_policy({"weight": 2}, "m000")
        assert catalog.policies.file.read() == {"m000": {"weight": 2}}
        file.unlink()
        with pytest.raises(Unsupported, match=r"is gone; to give up all changes, write {} to it"):
            catalog.set_policy({"weight": 3}, "m000")
        assert catalog.policy("m000").weight == 2
    finally:
        service.close()


def test_versions_that_were_loaded_for_a_change_that_cannot_be_written_are_retired(tmp_path: Path) -> None:
    for version in (1, 2):
        save(tiny_mlp(version), tmp_path / "m" / str(version))
    (tmp_path / "policy.json").write_text("{}")
    (tmp_path / "policy.json").chmod(0o444)
    service = start(tmp_path, policy='{"m": {"versions": "latest:1"}}')
    try:
        for change in (
            lambda: service.catalog.set_policy({"labels": {"stable": 1}}, "m"),
            lambda: pin(service.catalog, "m", 1),
        ):
            with pytest.raises(Unsupported, match="is read-only"):
                change()
            assert service.catalog.served_versions() == {"m": [2]}
    finally:
        service.close()


def test_a_look_at_the_file_before_a_change_takes_effect_finds_nothing_new(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = catalog.policies
    write, looks = policies.file.write, []

    with ThreadPoolExecutor(1) as pool:

        def look_meanwhile(changes: FieldsByModel) -> None:
            write(changes)
            looks.append(pool.submit(policies.read))

        monkeypatch.setattr(policies.file, "write", look_meanwhile)
        catalog.set_policy({"versions": "latest:1"}, "m000")
        assert [look.result() for look in looks] == [False]
    assert catalog.policy("m000").versions == "latest:1"
    assert [change.by for change in policies.history] == ["the program"]


def test_a_file_of_others_takes_effect_before_a_change_that_is_written(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = catalog.policies
    locked, path = policies.file.locked, path_of(catalog)
    others = ['{"m000": {"weight": 5, "shadow_tolerance": 0.5}, "m001": {"weight": 5}}']

    def write_before() -> AbstractContextManager[None]:
        if others:
            path.write_text(others.pop())
        return locked()

    monkeypatch.setattr(policies.file, "locked", write_before)
    catalog.set_policy({"weight": 2}, "m000")
    assert [catalog.policy(name).weight for name in ("m000", "m001")] == [2, 5]
    assert policies.file.read() == {
        "m000": {"weight": 2, "shadow_tolerance": 0.5},
        "m001": {"weight": 5},
    }
    assert [change.by for change in policies.history] == ["policy.json", "the program"]


def test_a_change_that_is_kept_while_a_file_of_others_is_loaded_stays(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = catalog.policies
    load, path = catalog.building.load, path_of(catalog)
    callers = [lambda: catalog.set_policy({"weight": 5}, "m001")]

    def load_slowly(name: str, policy: Policy) -> None:
        load(name, policy)
        if callers:  # another caller, who has the answer before the load ends
            callers.pop()()

    monkeypatch.setattr(catalog.building, "load", load_slowly)
    path.write_text('{"m000": {"versions": "latest:1"}}')
    assert policies.read()
    assert (catalog.policy("m000").versions, catalog.policy("m001").weight) == ("latest:1", 5)
    assert not policies.read()
    assert policies.file.read() == {"m000": {"versions": "latest:1"}, "m001": {"weight": 5}}


def test_changes_at_the_same_time_lose_nothing(catalog: Catalog) -> None:
    with ThreadPoolExecutor(8) as pool:
        for change in [pool.submit(catalog.set_policy, {"weight": n}, f"m{n % 2:03}") for n in range(1, 33)]:
            change.result()
        fields = [
            {"shadow_tolerance": 0.5},
            {"versions": "latest:1"},
            {"weight": 7},
            {"on_mismatch": "unfused"},
        ]
        for change in [pool.submit(catalog.set_policy, field, "m000") for field in fields]:
            change.result()
    policy = catalog.policy("m000")
    assert (policy.shadow_tolerance, policy.versions, policy.weight, policy.on_mismatch) == (
        0.5,
        "latest:1",
        7,
        "unfused",
    )
    assert catalog.policies.file.read() == catalog.policies.now.changes
    assert len(catalog.policies.history) == 36


def test_only_what_others_write_counts_as_read(catalog: Catalog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    reload = Reload("policy", [path_of(catalog)], catalog.policies.read)
    catalog.set_policy({"weight": 2}, "m000")
    reload.poll()
    reload.reload()
    assert reload.results == {"ok": 0, "failed": 0}
    assert "read again" not in caplog.text
    path_of(catalog).write_text('{"m000": {"weight": 3}}')
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
    path = path_of(catalog)
    catalog.set_policy({"weight": 2}, "m000")
    path.write_text('{"m000": {"weig')
    with pytest.raises(
        Unsupported, match=f"policy unchanged: fix the policy file first: {path}: expected JSON"
    ):
        catalog.set_policy({"weight": 3}, "m000")
    assert catalog.policy("m000").weight == 2
    assert path.read_text() == '{"m000": {"weig'
    path.write_text('{"m000": {"split": 0.5}}')  # not read yet
    with pytest.raises(InvalidInput, match="split or arms, not both"):
        catalog.set_policy({"arms": {"1/unfused": 0.5}}, "m000")
    catalog.set_policy({"weight": 3}, "m000")
    catalog.policies.read()
    assert (catalog.policy("m000").weight, catalog.policy("m000").split) == (3, 0.5)


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


def test_fields_of_a_later_release_are_ignored_with_a_warning_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_fleet(tmp_path, 2)
    path = tmp_path / "policy.json"
    later = {"split": 0.25, "hedge": {"after_ms": 5}}
    path.write_text(json.dumps({"format": 1, "written_by": "9.1.0", "policies": {"m000": later}}))
    service = Service(load_settings(model_repository=tmp_path))
    service.catalog.scan()
    service.catalog.load_all()
    assert service.catalog.policy("m000").split == 0.25
    assert (
        f"{path}: fields that this release does not know are ignored: m000.hedge; fused-mlp 9.1.0, which wrote it, does"
        in caplog.text
    )
    service.catalog.set_policy({"split": 0.5}, "m000")
    service.close()
    assert json.loads(path.read_text()) == {
        "format": 1,
        "written_by": metadata.version("fused-mlp"),
        "policies": {"m000": {"hedge": {"after_ms": 5}, "split": 0.5}},
    }


def test_fields_of_a_plan_of_a_later_release_are_kept_until_its_canary_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_fleet(tmp_path, 1)
    path = tmp_path / "policy.json"
    later = {"canary": {"to": "1/unfused", "hold_s": 5}}
    path.write_text(json.dumps({"format": 1, "written_by": "9.1.0", "policies": {"m000": later}}))
    service = Service(load_settings(model_repository=tmp_path))
    service.catalog.scan()
    service.catalog.load_all()
    assert "are ignored: m000.canary.hold_s; fused-mlp 9.1.0, which wrote it, does" in caplog.text
    service.catalog.set_policy({"weight": 2}, "m000")
    written = json.loads(path.read_text())["policies"]["m000"]
    assert (written["canary"]["to"], written["canary"]["hold_s"]) == ("1/unfused", 5)
    service.catalog.set_policy({"canary": None}, "m000")
    assert json.loads(path.read_text())["policies"]["m000"] == {"canary": None, "weight": 2.0}
    service.close()


def test_a_file_of_a_later_format_is_refused_in_one_line(tmp_path: Path) -> None:
    make_fleet(tmp_path, 1)
    (tmp_path / "policy.json").write_text('{"format": 2, "written_by": "9.1.0", "rules": []}')
    service = Service(load_settings(model_repository=tmp_path))
    with pytest.raises(ModelLoadError) as refused:
        service.catalog.scan()
    service.close()
    assert str(refused.value) == (
        f"{tmp_path}/policy.json: format: expected 1, got 2; start fused-mlp 9.1.0, which wrote it, or move the file "
        "away"
    )
