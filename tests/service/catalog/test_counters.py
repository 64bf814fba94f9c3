# SPDX-License-Identifier: Apache-2.0
"""What models have counted stays while their versions are unloaded, read again and rebuilt."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from fused_mlp import models
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.models import LayerSpec, Mlp, MlpSpec
from fused_mlp.service.catalog.ledger import Ledger
from fused_mlp.service.catalog.versions import room
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.client.retry import RetryPolicy
from fused_mlp.service.policy.canary_plan import CanaryStatus
from tests.support.fleet import WIDTH, make_fleet, tiny_mlp
from tests.support.puppet import PuppetService

X = np.ones((1, WIDTH), np.float32)


class Counting(PuppetService):
    def __enter__(self) -> Counting:
        super().__enter__()
        self.client = Client(self.target, retry=RetryPolicy(attempts=1))
        return self

    def __exit__(self, *details: object) -> None:
        self.client.close()
        super().__exit__(*details)

    def answered(self, model: str, **labels: str) -> float:
        return self.metric("fused_mlp_requests_total", model=model, code="OK", **labels)


def lazy(root: Path, front: str = "native", **settings: object) -> Counting:
    return Counting(
        front=front, model_repository=root, load="lazy", backend="auto", allow_load=True, **settings
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_fleet(tmp_path, 3)
    return tmp_path


def test_an_unloaded_version_keeps_its_counts_and_goes_on_with_them(root: Path) -> None:
    size = CpuKernel(tiny_mlp(), 1).memory_bytes
    with lazy(root, max_loaded_bytes=size) as server:
        for name in ("m000", "m001", "m000", "m002"):
            server.client.predict(name, X)
        assert [server.answered(f"m00{i}", variant="fused", version="1") for i in range(3)] == [2, 1, 1]
        assert server.metric("fused_mlp_request_duration_seconds_count", model="m000") == 2
        assert server.metric("fused_mlp_in_flight", model="m000") == 0
        assert server.metric("fused_mlp_loads_total") == 4
        assert server.metric("fused_mlp_unloads_total") == 3
        assert server.metric("fused_mlp_loaded_bytes") == size
        assert server.metric("fused_mlp_loaded_limit_bytes") == size


def wide_mlp() -> Mlp:
    spec = MlpSpec.of_layers(64, [LayerSpec(out_features=256, activation="relu"), LayerSpec(out_features=8)])
    random = np.random.default_rng(3)
    tensors = {name: random.normal(size=shape).astype(np.float32) for name, shape in spec.shapes()}
    return Mlp(spec, tensors, example=[1.0] * 64)


def test_another_precision_and_a_second_load_go_on_counting(tmp_path: Path) -> None:
    models.save(wide_mlp(), tmp_path / "wide" / "1")
    models.save(wide_mlp(), tmp_path / "wide" / "2")
    x = np.ones((1, 64), np.float32)
    with Counting(model_repository=tmp_path, backend="auto", allow_load=True) as server:
        catalog = server.service.catalog
        server.client.predict("wide", x, version=1)
        server.client.predict("wide", x)
        catalog.set_policy({"precision": "int8"}, "wide")
        server.client.predict("wide", x)
        assert catalog.find("wide").precision == "int8"
        assert server.answered("wide", version="2") == 2
        assert server.metric("fused_mlp_policy_info", model="wide", precision="int8") == 1
        catalog.set_policy({"weight": 3}, "wide")
        assert server.metric("fused_mlp_policy_weight", model="wide") == 3
        shutil.rmtree(tmp_path / "wide" / "1")
        catalog.load("wide")
        server.client.predict("wide", x)
        assert server.answered("wide", version="2") == 3
        assert server.answered("wide") == 4  # what a version had counted stays when it is gone


def test_counts_of_the_last_versions_that_are_gone_stay() -> None:
    ledger = Ledger(lambda _: True)
    for version in range(1, 41):
        ledger.lane("m", version, "fused")
        ledger.shadow("m", version)
    ledger.keep_versions("m", [1])
    assert [version for version, _ in ledger.of("m").lanes] == [1, *range(9, 41)]
    assert list(ledger.of("m").shadows) == [1, *range(9, 41)]


def test_the_shadow_goes_on_counting(root: Path) -> None:
    with Counting(model_repository=root, backend="auto", shadow=1.0, split=0.5, allow_load=True) as server:
        for _ in range(2):
            server.client.predict("m000", X)
            before = server.metric("fused_mlp_shadow_batches_total", model="m000")
            server.wait_for(lambda: server.metric("fused_mlp_shadow_batches_total", model="m000") >= 1)
            server.service.catalog.load("m000")
            assert server.metric("fused_mlp_shadow_batches_total", model="m000") >= max(1, before)


def test_counts_of_a_removed_model_go_with_its_folder(root: Path) -> None:
    with lazy(root) as server:
        catalog = server.service.catalog
        server.client.predict("m002", X)
        catalog.unload("m002")
        assert server.answered("m002") == 1
        catalog.load("m002")
        server.client.predict("m002", X)
        assert server.answered("m002") == 2
        catalog.unload("m002")
        (root / "m002").unlink()
        assert server.metric("fused_mlp_requests_total", model="m002") == 0


def test_models_that_come_and_go_without_a_scrape_leave_nothing(root: Path) -> None:
    with lazy(root) as server:
        catalog = server.service.catalog
        for number in range(300):
            name = f"passing{number}"
            (root / name).symlink_to(root / "m000")
            catalog.load(name)
            catalog.unload(name)
            (root / name).unlink()
        assert len(catalog._ledger._models) < 100


@pytest.fixture(params=["native", "python"])
def server(request: pytest.FixtureRequest, root: Path) -> Iterator[Counting]:
    (root / "m001").unlink()
    models.save(tiny_mlp(), root / "m001" / "1")
    with lazy(root, request.param) as running:
        yield running


def unserved(server: Counting, model: str, code: str) -> float:
    return server.metric("fused_mlp_requests_total", model=model, code=code, version="", variant="")


def test_requests_that_a_model_cannot_answer_count_under_its_name(server: Counting, root: Path) -> None:
    weights = root / "m001" / "1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\xc0\x7f")  # NaN
    for name, version, code in (
        ("m001", 0, grpc.StatusCode.UNAVAILABLE),
        ("m000", 7, grpc.StatusCode.NOT_FOUND),
        ("made-up", 0, grpc.StatusCode.NOT_FOUND),
    ):
        with pytest.raises(PredictError) as failed:
            server.client.predict(name, X, version=version)
        assert failed.value.code is code
    assert unserved(server, "m001", "UNAVAILABLE") == 1
    assert unserved(server, "m000", "NOT_FOUND") == 1
    assert unserved(server, "", "NOT_FOUND") == 1
    assert unserved(server, "made-up", "NOT_FOUND") == 0
    assert unserved(server, "", "UNAVAILABLE") == 0


def test_a_deadline_that_passes_while_a_model_waits_for_room_counts_under_its_name(
    root: Path, monkeypatch: pytest.MonkeyPatch, front: str
) -> None:
    monkeypatch.setattr(room, "MIN_STAY_S", 1000)
    models.save(tiny_mlp(), root / "two" / "1")
    with lazy(root, front, max_loaded_bytes=CpuKernel(tiny_mlp(), 1).memory_bytes) as server:
        server.service.catalog.load("m000")  # it has not run, so that it stays
        with pytest.raises(PredictError):
            server.client.predict("two", X, timeout_s=0.2)
        # Either side may be the first to see that the time is up.
        codes = "DEADLINE_EXCEEDED", "CANCELLED"
        server.wait_for(lambda: sum(unserved(server, "two", code) for code in codes) == 1)
        assert sum(unserved(server, "", code) for code in codes) == 0


def test_failed_loads_and_canaries_of_a_removed_model_go_with_it(root: Path) -> None:
    with Counting(model_repository=root, backend="auto") as server:
        catalog = server.service.catalog
        (root / "broken").mkdir()
        for name in ("broken", "m000"):
            (root / name / "7").mkdir()
            (root / name / "7" / "model.json").write_text("{")
            catalog.refresh(name)
        catalog.policies.canaries["broken"] = CanaryStatus("7", "running", 0.1, "", "")
        assert catalog.failed_loads() == {("broken", 7): 1, ("m000", 7): 1}
        shutil.rmtree(root / "broken")
        shutil.rmtree(root / "m000" / "7")
        for name in ("broken", "m000"):
            catalog.refresh(name)
        assert catalog.policies.canaries == {}
        models.save(tiny_mlp(), root / "broken" / "7")
        catalog.refresh("broken")
        assert catalog.failed_loads() == {}
