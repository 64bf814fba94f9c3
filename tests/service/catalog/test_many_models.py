# SPDX-License-Identifier: Apache-2.0
"""Hundreds of models in one catalog: what a change costs, what is kept of a model, what is said about all of them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from fused_mlp import models
from fused_mlp.kernels import KernelUnavailable
from fused_mlp.service import _engine
from fused_mlp.service.app import Service
from fused_mlp.service.catalog.catalog import MAX_NAMED, Catalog
from fused_mlp.service.observe.banner import MAX_LISTED
from fused_mlp.service.observe.http_request import BadRequest, Query
from fused_mlp.service.observe.scrape.model_metrics import ModelMetrics, Scrape
from fused_mlp.service.observe.status import status_json
from fused_mlp.service.settings.environment import load_settings
from tests.support.fleet import make_fleet, tiny_mlp

COUNT = 300


class CountingRouter:
    """A router that counts the entries it is given."""

    def __init__(self) -> None:
        self.router = _engine.Router()
        self.entries = 0

    def update(
        self,
        names: Collection[str],
        entries: Collection[_engine.RouteEntry],
        plans: Collection[_engine.RoutePlan],
    ) -> None:
        self.entries += len(entries)
        self.router.update(list(names), list(entries), list(plans))

    def taken(self) -> int:
        taken, self.entries = self.entries, 0
        return taken


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_fleet(tmp_path, COUNT)
    return tmp_path


@pytest.fixture
def service(root: Path) -> Iterator[Service]:
    made = Service(load_settings(model_repository=root))
    yield made
    made.close()


def loaded(service: Service) -> Catalog:
    service.catalog.scan()
    service.catalog.load_all()
    return service.catalog


def test_each_change_publishes_the_routes_of_what_it_changes(root: Path) -> None:
    engine, router = _engine.Engine(workers=1), CountingRouter()
    catalog = Catalog(load_settings(model_repository=root), engine, router)  # type: ignore[arg-type]
    try:
        catalog.scan()
        catalog.load_all()
        assert router.taken() == 2 * COUNT  # as loading, and as loaded
        catalog.load("m007")
        catalog.set_policy({"allow_override": False}, "m008")
        assert router.taken() == 2
        catalog.unload("m009")
        assert router.taken() == 0
        catalog.set_policy({"split": 0.0})
        assert router.taken() == COUNT - 1
        for name, known in (("m007", True), ("m009", False)):
            if known:
                assert router.router.resolve(name).model == name
            else:
                with pytest.raises(_engine.Refused, match="not served here"):
                    router.router.resolve(name)
    finally:
        engine.stop()


def test_threads_do_not_grow_with_models(service: Service) -> None:
    before = threading.active_count()
    loaded(service)
    assert threading.active_count() == before


def test_weights_are_read_again_for_a_kernel_that_a_policy_needs_later(service: Service) -> None:
    catalog = loaded(service)
    catalog.set_policy({"variant": "unfused"}, "m001")
    served = catalog.find("m001")
    assert list(served.lanes) == ["fused", "unfused"]
    x = np.ones((2, 4), np.float32)
    assert served.weights is not None
    np.testing.assert_array_equal(
        served.weights.read().tensors()["layers.0.bias"], tiny_mlp().tensors()["layers.0.bias"]
    )
    assert served.fused is not None
    assert served.fused(x).shape == (2, 3)


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_changed_files_are_not_mixed_with_what_was_loaded(
    service: Service, root: Path, tmp_path: Path, change: str
) -> None:
    catalog = loaded(service)
    weights = root / "m000" / "1" / "model.safetensors"
    weights.unlink()
    if change == "replaced":
        models.save(tiny_mlp(seed=2), tmp_path / ".other" / "1")
        (tmp_path / ".other" / "1" / "model.safetensors").rename(weights)
    expected = {
        "replaced": "m001/1: its files have changed since it was loaded; load it again",
        "removed": "m001/1: its weights cannot be read again: m001/1/model.safetensors: no such file",
    }
    with pytest.raises(KernelUnavailable) as refused:
        catalog.set_policy({"variant": "unfused"}, "m001")
    assert str(refused.value) == expected[change]
    assert catalog.find("m001").variant == "fused"


def test_start_is_told_in_a_summary_with_the_first_broken_versions(
    service: Service, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = [f"m{number:03}" for number in range(100, 100 + MAX_NAMED + 2)]
    for name in broken:
        (root / name).unlink()
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.json").write_text("{")
    with caplog.at_level(logging.INFO):
        loaded(service)
    assert f"versions loaded: {COUNT - len(broken)} of {COUNT} models, in" in caplog.text
    lines = [record.getMessage() for record in caplog.records if "not served" in record.getMessage()]
    assert len(lines) == MAX_NAMED + 1
    assert lines[0].startswith("m100/1 is not served: m100/1/model.json: ")
    assert lines[-1] == "and 2 more are not served, see /status.json?answers=no"
    service.front = type("Front", (), {"name": "native"})()
    text = service.banner()
    assert f"models   {COUNT}, of which {COUNT - len(broken)} versions are served" in text
    assert text.count("NOT SERVED") == MAX_NAMED
    assert "and 2 more are not served, see /status.json?answers=no" in text
    assert len(text.splitlines()) < MAX_LISTED + MAX_NAMED


def metrics_of(service: Service) -> ModelMetrics:
    return ModelMetrics(service.engine, service.catalog, service.meter, 8192, "native")


def text_of(pieces: Iterable[bytes]) -> str:
    return b"".join(pieces).decode()


def samples(pieces: Iterable[bytes]) -> list[str]:
    return [line for line in text_of(pieces).splitlines() if not line.startswith("#")]


def test_models_without_traffic_have_one_series_each(service: Service) -> None:
    catalog = loaded(service)
    catalog.find("m005").lanes["fused"].record(0, 1000)
    metrics = metrics_of(service)
    series = samples(metrics.text())
    assert sum('model="m004"' in line for line in series) == 1
    assert 20 < sum('model="m005"' in line for line in series) < 40  # no zeros of what it never counted
    assert samples(metrics.text(["fused_mlp_requests_total"])) == [
        'fused_mlp_requests_total{code="OK",model="m005",variant="fused",version="1"} 1'
    ]
    # A part of a histogram is no histogram: that has to have a bucket of +Inf.
    part = ["fused_mlp_batch_rows_count"]
    assert "\n# TYPE fused_mlp_batch_rows_count unknown\n" in text_of(metrics.text(part, openmetrics=True))
    assert "\n# TYPE fused_mlp_batch_rows_count untyped\n" in text_of(metrics.text(part))
    assert samples(metrics.text(["fused_mlp_batch_rows_count"])) == [
        'fused_mlp_batch_rows_count{model="m005",variant="fused",version="1"} 0'
    ]
    assert any(
        line.startswith("fused_mlp_batch_rows_bucket{")
        for line in samples(metrics.text(["fused_mlp_batch_rows"]))
    )


def test_what_a_scrape_does_not_ask_for_is_not_read(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = loaded(service)
    metrics = metrics_of(service)
    catalog.find("m005").lanes["fused"].record(0, 1000)
    monkeypatch.setattr(Scrape, "lanes", property(lambda _: pytest.fail("lanes were read")))
    assert samples(metrics.text(["fused_mlp_policy_split_ratio"])) == [
        'fused_mlp_policy_split_ratio{model=""} 0.0'
    ]


@pytest.mark.parametrize(("buckets", "expected"), [(None, 12), ("fine", 37), ("coarse", 12)])
def test_many_models_have_fewer_buckets_unless_a_scrape_asks_for_others(
    service: Service, buckets: str | None, expected: int
) -> None:
    lane = loaded(service).find("m005").lanes["fused"]
    metrics = metrics_of(service)
    for duration_ns in (30_000, 60_000, 3_000_000_000):
        lane.record(0, duration_ns)
    lines = samples(metrics.text(["fused_mlp_request_duration_seconds_bucket"], buckets))
    assert len(lines) == expected
    counts = {line.partition('le="')[2].partition('"')[0]: int(line.rpartition(" ")[2]) for line in lines}
    assert [counts[le] for le in ("2e-05", "5e-05", "0.0001", "1", "+Inf")] == [0, 1, 2, 2, 3]


def test_a_model_without_a_policy_of_its_own_has_that_of_the_server(service: Service) -> None:
    catalog = loaded(service)
    metrics = metrics_of(service)
    catalog.set_policy({"on_mismatch": "unfused"}, "m007")
    assert samples(metrics.text(["fused_mlp_policy_info"])) == [
        'fused_mlp_policy_info{model="",on_mismatch="log",precision="float32",variant="fused"} 1',
        'fused_mlp_policy_info{model="m007",on_mismatch="unfused",precision="float32",variant="fused"} 1',
    ]


def test_many_active_models_are_a_few_kilobytes_each(service: Service) -> None:
    for model in loaded(service).models():
        for v in model.versions:
            v.lanes["fused"].record(0, 30_000)
    assert len(text_of(metrics_of(service).text())) < 3500 * COUNT  # 14 kB with all buckets and zeros


def test_status_is_told_in_pages(service: Service, root: Path) -> None:
    (root / "m100").unlink()
    (root / "m100" / "1").mkdir(parents=True)
    (root / "m100" / "1" / "model.json").write_text("{")
    catalog = loaded(service)

    def page(path: str) -> dict[str, Any]:
        query = Query(parse_qs(urlsplit(path).query))
        return cast(dict[str, Any], json.loads(status_json(catalog, "native", True, query)))

    first = page("/status.json")
    assert len(first["models"]) == 100
    assert first["counts"] == {"models": COUNT, "versions": {"READY": COUNT - 1, "UNAVAILABLE": 1}}
    names, path = [], "/status.json?limit=120"
    while path:
        told = page(path)
        names += [model["name"] for model in told["models"]]
        path = told["next"]
    assert names == [model.name for model in catalog.models()]
    broken = page("/status.json?answers=no")
    assert [model["name"] for model in broken["models"]] == ["m100"]
    assert broken["next"] is None
    assert [model["name"] for model in page("/status.json?model=m007")["models"]] == ["m007"]
    assert page("/status.json?model=unknown")["models"] == []
    for limit in ("all", "0"):
        with pytest.raises(BadRequest, match=f"limit: expected a number from 1 to 1000, got '{limit}'"):
            page(f"/status.json?limit={limit}")
