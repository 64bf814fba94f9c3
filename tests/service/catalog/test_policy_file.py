"""The file that keeps policies, beside what is in force and what the settings say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fused_mlp.models import ModelLoadError
from fused_mlp.service.access.reloading import Reload
from fused_mlp.service.app import Service
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.settings.settings import load_settings
from tests.support.fleet import make_fleet


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
