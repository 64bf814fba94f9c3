# SPDX-License-Identifier: Apache-2.0
"""FUSED_MLP_LOAD=lazy: models are loaded with the first request for them, and unloaded when there is no room."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from fused_mlp import kernels, models
from fused_mlp.kernels import Backend, Kernel, KernelUnavailable
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.models import LayerSpec, Mlp, MlpSpec
from fused_mlp.models.weights import precision
from fused_mlp.protos import open_inference_pb2 as pb
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.versions import on_demand, room
from fused_mlp.service.catalog.versions.on_demand import OnDemand
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.client.retry import RetryPolicy
from tests.support.fleet import WIDTH, make_fleet, tiny_mlp
from tests.support.fronts import both_fronts
from tests.support.puppet import PuppetService

X = np.ones((1, WIDTH), np.float32)


class Gate:
    """Holds back the building of kernels while it is closed."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reset()

    def reset(self) -> None:
        self.open.set()
        self.entered = threading.Semaphore(0)
        self.built = 0

    def build(self, mlp: Mlp, threads: int | None) -> Kernel:
        self.entered.release()
        assert self.open.wait(30)
        self.built += 1
        return CpuKernel(mlp, threads)


GATE = Gate()
kernels.register(Backend("gated", "fused", "cpu", -2, lambda _: None, GATE.build))


@pytest.fixture
def gate() -> Iterator[Gate]:
    GATE.reset()
    yield GATE
    GATE.open.set()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_fleet(tmp_path, 4)
    return tmp_path


class Lazy(PuppetService):
    def __init__(self, front: str, root: Path, **settings: object) -> None:
        given = {
            "front": front,
            "model_repository": root,
            "load": "lazy",
            "backend": "gated",
            "allow_load": True,
        }
        super().__init__(**{**given, **settings})

    def __enter__(self) -> Lazy:
        super().__enter__()
        self.client = Client(self.target, retry=RetryPolicy(attempts=1))
        self.channel = grpc.insecure_channel(self.target)
        self.stub = Stub(self.channel, pb, "GRPCInferenceService")
        return self

    def __exit__(self, *details: object) -> None:
        self.client.close()
        self.channel.close()
        super().__exit__(*details)

    def states(self) -> dict[str, tuple[str, str]]:
        return {
            m.name: (m.state, m.reason) for m in self.stub.RepositoryIndex(pb.RepositoryIndexRequest()).models
        }

    def metrics(self) -> list[str]:
        url = f"http://127.0.0.1:{self.service.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as page:
            return page.read().decode().splitlines()

    def told_broken(self) -> list[str]:
        url = f"http://127.0.0.1:{self.service.metrics_port}/status.json?answers=no"
        with urllib.request.urlopen(url, timeout=10) as page:
            return [model["name"] for model in json.load(page)["models"]]

    def loaded(self) -> set[str]:
        return {name for name, (state, _) in self.states().items() if state == "READY"}

    def predict(self, name: str, timeout_s: float = 30) -> np.ndarray:
        return self.client.predict(name, X, timeout_s=timeout_s).output


@pytest.fixture
def lazy(front: str, root: Path, gate: Gate) -> Iterator[Lazy]:
    with Lazy(front, root) as running:
        yield running


def expected(seed: int = 1) -> np.ndarray:
    return kernels.compile(tiny_mlp(seed), variant="fused", device="cpu")(X)


def test_names_and_shapes_are_known_before_anything_is_loaded(lazy: Lazy, gate: Gate) -> None:
    assert lazy.states()["m002"] == ("UNAVAILABLE", "not loaded: the first request for it loads it")
    assert lazy.client.health("m002") == "SERVING"
    assert lazy.stub.ModelReady(pb.ModelReadyRequest(name="m002")).ready
    info = lazy.client.model("m002").version()
    assert (info.in_features, info.kernels) == (WIDTH, ())
    metadata = lazy.stub.ModelMetadata(pb.ModelMetadataRequest(name="m002"))
    assert list(metadata.inputs[0].shape) == [-1, WIDTH]
    assert gate.built == 0


def test_the_list_of_models_says_which_are_loaded_and_why_others_cannot_be(lazy: Lazy, root: Path) -> None:
    lazy.predict("m001")
    weights = root / "m000" / "1" / "model.safetensors"
    (weights.parent / "model.safetensors.sha256").unlink()
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\xc0\x7f")  # NaN
    with pytest.raises(PredictError):
        lazy.predict("m003")
    command = [sys.executable, "-m", "fused_mlp.service.cli", "models", "--target", lazy.target]
    shown = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "80"}
    )
    lines = {name: line for line in shown.stdout.splitlines() for name in ("m001", "m002") if name in line}
    assert "fused" in lines["m001"], shown
    assert "4-8-3 relu" in lines["m002"]
    assert "on demand" in lines["m002"]
    assert "UNAVAILABLE" in next(line for line in shown.stdout.splitlines() if "m003" in line)
    assert "m003/1: m003/1/model.safetensors: tensor 'layers.1.weight': 1 of 24" in shown.stdout
    assert lazy.client.model("m002").version().state == "ON_DEMAND"
    assert 'fused_mlp_model_info{model="m002",state="ON_DEMAND",version="1"} 1' in lazy.metrics()


@both_fronts
def test_the_first_request_loads_and_is_answered(lazy: Lazy, gate: Gate) -> None:
    np.testing.assert_array_equal(lazy.predict("m001"), expected())
    assert lazy.loaded() == {"m001"}
    np.testing.assert_array_equal(lazy.predict("m001"), expected())
    tensor = pb.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[1, WIDTH])
    request = pb.ModelInferRequest(model_name="m003", inputs=[tensor], raw_input_contents=[X.tobytes()])
    assert lazy.stub.ModelInfer(request).raw_output_contents[0] == expected().tobytes()
    results = [item.result.output for item in lazy.client.stream("m002", [X, X])]
    np.testing.assert_array_equal(results, [expected(), expected()])
    assert lazy.loaded() == {"m001", "m002", "m003"}
    assert gate.built == 3
    with pytest.raises(PredictError, match=r"expected .* got"):
        lazy.client.predict("m000", np.ones((1, 9), np.float32))


def test_only_callers_of_a_model_wait_for_it_and_it_is_loaded_once(lazy: Lazy, gate: Gate) -> None:
    lazy.predict("m000")
    gate.open.clear()
    with ThreadPoolExecutor(5) as callers:
        waiting = [callers.submit(lazy.predict, "m001") for _ in range(5)]
        assert gate.entered.acquire(timeout=30)  # of m000
        assert gate.entered.acquire(timeout=30)
        assert lazy.states()["m001"] == ("LOADING", "still loading")
        np.testing.assert_array_equal(lazy.predict("m000"), expected())
        assert lazy.client.health("m001") == "SERVING"
        assert 'fused_mlp_model_info{model="m001",state="LOADING",version="1"} 1' in lazy.metrics()
        assert not any(future.done() for future in waiting)
        gate.open.set()
        for future in waiting:
            np.testing.assert_array_equal(future.result(30), expected())
    assert gate.built == 2


def test_a_load_that_ends_in_an_error_of_ours_is_tried_again(
    lazy: Lazy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its callers wait for the next try, not for their deadlines."""
    find, errors = OnDemand._find, [MemoryError()]

    def fail_once(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return find(*arguments)

    monkeypatch.setattr(OnDemand, "_find", fail_once)
    np.testing.assert_array_equal(lazy.predict("m001", timeout_s=20), expected())
    assert "the load of m001/1 failed" in caplog.text


def test_each_version_is_asked_for_once(tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again with every other that is loaded meanwhile."""
    names = make_fleet(tmp_path, 12)
    wanted: list[str] = []
    want = Catalog.want

    def counted(catalog: Catalog, name: str, version: int = 0) -> Future[None]:
        wanted.append(name)
        return want(catalog, name, version)

    monkeypatch.setattr(Catalog, "want", counted)
    gate.open.clear()
    with Lazy("native", tmp_path, loops=1) as lazy, ThreadPoolExecutor(len(names)) as callers:
        waiting = [callers.submit(lazy.predict, name) for name in names]
        lazy.wait_for(lambda: len(wanted) == len(names))
        gate.open.set()
        for future in waiting:
            np.testing.assert_array_equal(future.result(30), expected())
    assert sorted(wanted) == names


@both_fronts
def test_a_waiting_caller_has_its_deadline_and_may_give_up(lazy: Lazy, gate: Gate) -> None:
    gate.open.clear()
    with pytest.raises(PredictError) as failed:
        lazy.predict("m001", timeout_s=0.2)
    assert failed.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    infer = lazy.stub.ModelInfer.future(pb.ModelInferRequest(model_name="m001"))
    stream = lazy.client.stream("m001", [X])
    infer.cancel()
    stream.close() if hasattr(stream, "close") else None
    gate.open.set()
    np.testing.assert_array_equal(lazy.predict("m001"), expected())
    assert gate.built == 1


def test_a_load_that_no_caller_waits_for_any_more_is_not_begun(
    front: str, root: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "MAX_THREADS", 1)
    with Lazy(front, root) as lazy, ThreadPoolExecutor(2) as callers:
        gate.open.clear()
        first = callers.submit(lazy.predict, "m000")
        assert gate.entered.acquire(timeout=30)
        monkeypatch.setattr(on_demand, "WANTED_FOR_S", 0.0)
        with pytest.raises(PredictError):
            lazy.predict("m001", timeout_s=0.1)
        gate.open.set()
        first.result(30)
        lazy.wait_for(lambda: not lazy.service.catalog.on_demand._loads)
        assert (gate.built, lazy.states()["m001"][0]) == (1, "UNAVAILABLE")
        monkeypatch.setattr(on_demand, "WANTED_FOR_S", 3.0)
        assert lazy.predict("m001").shape == (1, 3)  # the next caller has it loaded


def test_a_failing_load_answers_its_caller_and_is_tried_again_when_mended(
    lazy: Lazy, root: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(on_demand, "FIRST_PAUSE_S", 0.05)
    weights = root / "m000" / "1" / "model.safetensors"
    (weights.parent / "model.safetensors.sha256").unlink()
    right = weights.read_bytes()
    weights.write_bytes(right[:-4] + b"\0\0\xc0\x7f")  # NaN
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            with pytest.raises(PredictError) as failed:
                lazy.predict("m001")
            assert failed.value.code is grpc.StatusCode.UNAVAILABLE
            assert "could not be loaded; GetModel says why" in str(failed.value)
            assert "NaN or infinite" in lazy.states()["m001"][1]
            lazy.wait_for(lambda: lazy.client.health("m001") == "SERVING")  # it may be tried again
            # Not "can answer" until it has.
            assert 'fused_mlp_model_info{model="m001",state="UNAVAILABLE",version="1"} 0' in lazy.metrics()
            assert lazy.client.model("m001").version().state == "UNAVAILABLE"
            assert "m001" in lazy.told_broken()
    assert 'fused_mlp_load_failures_total{model="m001",version="1"} 3' in lazy.metrics()
    lines = [r.getMessage() for r in caplog.records if "m001/1 cannot be loaded" in r.getMessage()]
    assert len(lines) == 1
    assert str(root) not in lines[0]
    weights.write_bytes(right)
    np.testing.assert_array_equal(lazy.predict("m001"), expected())
    assert 'fused_mlp_model_info{model="m001",state="READY",version="1"} 1' in lazy.metrics()
    assert lazy.told_broken() == []


def test_the_model_used_least_recently_makes_room(
    front: str, root: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    size = CpuKernel(tiny_mlp(), 1).memory_bytes
    with Lazy(front, root, max_loaded_bytes=2 * size) as lazy:
        for name in ("m000", "m001", "m000"):
            lazy.predict(name)
        lazy.predict("m002")
        assert lazy.loaded() == {"m000", "m002"}
        assert lazy.states()["m001"][0] == "UNAVAILABLE"
        np.testing.assert_array_equal(lazy.predict("m001"), expected())
        assert lazy.loaded() == {"m001", "m002"}
    lines = [line for r in caplog.records if "action=evict" in (line := r.getMessage())]
    assert len(lines) == 1
    assert "who=server action=evict model=m001 version=1" in lines[0]
    assert "used least recently, to make room; 1 since the last such line" in lines[0]


def test_a_kernel_that_a_policy_asks_for_takes_room_too(root: Path, gate: Gate) -> None:
    size = CpuKernel(tiny_mlp(), 1).memory_bytes
    with Lazy("native", root, max_loaded_bytes=2 * size) as lazy:
        lazy.predict("m000")
        lazy.predict("m001")
        lazy.service.catalog.set_policy({"variant": "unfused"}, "m001")
        assert lazy.loaded() == {"m001"}
    with Lazy("native", root, max_loaded_bytes=size) as lazy:
        lazy.predict("m000")
        with pytest.raises(KernelUnavailable, match=r"m000: it needs [\d,]+ bytes, more than the"):
            lazy.service.catalog.set_policy({"variant": "unfused"}, "m000")
        assert lazy.loaded() == {"m000"}


def test_a_policy_that_changes_while_a_model_is_read_again_takes_room(root: Path, gate: Gate) -> None:
    size = CpuKernel(tiny_mlp(), 1).memory_bytes
    with Lazy("native", root, max_loaded_bytes=2 * size) as lazy, ThreadPoolExecutor(1) as other:
        lazy.predict("m000")
        assert gate.entered.acquire(timeout=30)
        gate.open.clear()
        load = other.submit(lazy.service.catalog.load, "m001")
        assert gate.entered.acquire(timeout=30)
        lazy.service.catalog.set_policy({"variant": "unfused"}, "m001")
        gate.open.set()
        load.result(30)
        assert lazy.loaded() == {"m001"}


def wide_mlp() -> Mlp:
    spec = MlpSpec.of_layers(64, [LayerSpec(out_features=256, activation="relu"), LayerSpec(out_features=8)])
    random = np.random.default_rng(3)
    tensors = {name: random.normal(size=shape).astype(np.float32) for name, shape in spec.shapes()}
    return Mlp(spec, tensors, example=[1.0] * 64)


def test_room_is_reckoned_by_precision(tmp_path: Path, gate: Gate) -> None:
    models.save(wide_mlp(), tmp_path / "wide" / "1")
    x = np.ones((1, 64), np.float32)
    limit = 2 * wide_mlp().spec.parameters
    with Lazy("native", tmp_path, max_loaded_bytes=limit) as lazy, pytest.raises(PredictError):
        lazy.client.predict("wide", x)
    policy = '{"*": {"precision": "int8"}}'
    with Lazy("native", tmp_path, policy=policy, max_loaded_bytes=limit) as lazy:
        lazy.client.predict("wide", x)


def test_a_policy_that_shrinks_a_model_needs_no_room_beside_it(tmp_path: Path, gate: Gate) -> None:
    models.save(wide_mlp(), tmp_path / "wide" / "1")
    x = np.ones((1, 64), np.float32)
    with Lazy("native", tmp_path, max_loaded_bytes=CpuKernel(wide_mlp(), 1).memory_bytes) as lazy:
        lazy.client.predict("wide", x)
        lazy.service.catalog.set_policy({"precision": "int8"}, "wide")
        assert lazy.client.model("wide").version().state == "ON_DEMAND"
        lazy.client.predict("wide", x)
        assert lazy.service.catalog.find("wide").precision == "int8"


def test_the_error_is_measured_once_for_the_same_weights(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.save(wide_mlp(), tmp_path / "wide" / "1")
    x, measured, errors = np.ones((1, 64), np.float32), [], []
    measure = precision.measure
    monkeypatch.setattr(precision, "measure", lambda *given: measured.append(1) or measure(*given))
    with Lazy("native", tmp_path) as lazy:
        for wanted in ("int8", "float32", "int8"):
            lazy.service.catalog.set_policy({"precision": wanted}, "wide")
            lazy.client.predict("wide", x)
            errors.append(lazy.service.catalog.find("wide").precision_error)
    assert len(measured) == 1
    assert errors[0] == errors[2] != errors[1]


def test_loading_a_model_loads_its_default_only(tmp_path: Path, gate: Gate) -> None:
    for version in ("1", "2", "3"):
        models.save(tiny_mlp(), tmp_path / "many" / version)
    size = CpuKernel(tiny_mlp(), 1).memory_bytes
    with Lazy("native", tmp_path, max_loaded_bytes=size) as lazy:
        lazy.stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="many"))
        states = [lazy.client.model("many").version(number).state for number in (1, 2, 3)]
        assert states == ["ON_DEMAND", "ON_DEMAND", "READY"]
        np.testing.assert_array_equal(lazy.client.predict("many", X, version=1).output, expected())


def test_a_model_with_requests_is_never_unloaded(
    front: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MAX_WAIT_FOR_ROOM_S", 0.1)
    size = 4 * tiny_mlp().spec.parameters
    with Lazy(front, root, backend="puppet", max_loaded_bytes=size) as lazy:
        lazy.predict("m000")
        lazy.use_last_kernel()
        lazy.hold()
        with ThreadPoolExecutor(1) as caller:
            held = caller.submit(lazy.predict, "m000")
            lazy.wait_entered()
            with pytest.raises(PredictError) as failed:
                lazy.predict("m001")
            assert failed.value.code is grpc.StatusCode.UNAVAILABLE
            assert lazy.states()["m001"][1].startswith("no room: ")
            assert lazy.client.health("m001") == "SERVING"
            assert lazy.loaded() == {"m000"}
            lazy.release()
            assert held.result(30).shape == (1, 3)


def test_a_shortage_of_room_changes_no_default(
    front: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MAX_WAIT_FOR_ROOM_S", 0.1)
    monkeypatch.setattr(on_demand, "FIRST_PAUSE_S", 30)
    models.save(tiny_mlp(), tmp_path / "hog" / "1")
    for version in (1, 2):
        models.save(tiny_mlp(), tmp_path / "two" / str(version))
    size = 4 * tiny_mlp().spec.parameters
    with Lazy(front, tmp_path, backend="puppet", max_loaded_bytes=size) as lazy:
        lazy.predict("hog")
        lazy.use_last_kernel()
        lazy.hold()
        with ThreadPoolExecutor(1) as callers:
            held = callers.submit(lazy.predict, "hog")
            lazy.wait_entered()
            for _ in range(2):  # one that had it loaded, and one after that
                with pytest.raises(PredictError, match="FUSED_MLP_MAX_LOADED_BYTES") as failed:
                    lazy.client.predict("two", X, timeout_s=30)
                assert failed.value.code is grpc.StatusCode.UNAVAILABLE
            assert lazy.client.model("two").version(2).reason.startswith("no room: ")
            assert lazy.client.health("two") == "SERVING"
            assert lazy.service.catalog.find("two").version == 2
            with pytest.raises(PredictError) as failed:
                lazy.client.predict("two", X, version=1)
            assert failed.value.code is grpc.StatusCode.UNAVAILABLE
            lazy.release()
            held.result(30)


def test_a_load_that_fits_does_not_wait_for_those_that_do_not(
    front: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fleet(tmp_path, 1)
    spec = MlpSpec.of_layers(WIDTH, [LayerSpec(out_features=64), LayerSpec(out_features=3)])
    wide = Mlp(spec, {name: np.ones(shape, np.float32) for name, shape in spec.shapes()})
    models.save(wide, tmp_path / "wide0" / "1")
    for number in range(1, 6):  # more than threads that load
        (tmp_path / f"wide{number}").symlink_to(tmp_path / "wide0")
    monkeypatch.setattr(room, "MAX_WAIT_FOR_ROOM_S", 30)
    size = 4 * spec.parameters
    with Lazy(front, tmp_path, backend="puppet", max_loaded_bytes=size + 300) as lazy:
        lazy.service.catalog.on_demand.room.take("other", 400)
        with ThreadPoolExecutor(6) as callers:
            waiting = [callers.submit(lazy.predict, f"wide{number}") for number in range(6)]
            lazy.wait_for(lambda: sum(state == "LOADING" for state, _ in lazy.states().values()) == 6)
            assert lazy.predict("m000", timeout_s=10).shape == (1, 3)
            assert not any(future.done() for future in waiting)
            lazy.service.catalog.on_demand.room.give_back("other")
            for future in waiting:
                assert future.result(30).shape == (1, 3)


def test_idle_models_stay_where_unloading_them_would_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_WAIT_FOR_ROOM_S", 0)
    used = {"version": 1, "has_run": True, "loaded_ns": 0, "last_used_ns": 0}
    busy = SimpleNamespace(model="busy", memory_bytes=80, in_flight=1, **used)
    idle = SimpleNamespace(model="idle", memory_bytes=10, in_flight=0, **used)
    unloaded: list[object] = []
    limited = room.Room(100, lambda: [busy, idle], lambda v: unloaded.append(v) or True)
    with pytest.raises(room.NoRoom):
        limited.take("new", 50)
    assert unloaded == []
    limited.take("new", 20)
    assert unloaded == [idle]


def test_a_model_larger_than_all_room_says_so(front: str, root: Path) -> None:
    with Lazy(front, root, max_loaded_bytes=10) as lazy:
        with pytest.raises(PredictError):
            lazy.predict("m000")
        assert lazy.states()["m000"][1].endswith("more than the 10 of FUSED_MLP_MAX_LOADED_BYTES")


def test_a_model_that_is_unloaded_and_loaded_again_begins_anew(
    root: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """Its failures are told again."""
    models.save(tiny_mlp(), root / "m000" / "2")
    weights = root / "m000" / "1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\xc0\x7f")  # NaN
    with Lazy("native", root) as lazy:
        for _ in range(2):
            with pytest.raises(PredictError):
                lazy.client.predict("m001", X, version=1)
            lazy.stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="m001"))
            lazy.stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="m001"))
    assert sum("m001/1 cannot be loaded" in r.getMessage() for r in caplog.records) == 2


@pytest.mark.parametrize("change", ["unload", "load"])
def test_a_change_while_it_is_loaded_wins(lazy: Lazy, root: Path, gate: Gate, change: str) -> None:
    gate.open.clear()
    with ThreadPoolExecutor(2) as callers:
        waiting = callers.submit(lazy.predict, "m001")
        assert gate.entered.acquire(timeout=30)
        if change == "unload":
            lazy.stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="m001"))
            gate.open.set()
            with pytest.raises(PredictError) as failed:
                waiting.result(30)
            assert failed.value.code is grpc.StatusCode.NOT_FOUND
        else:
            models.save(tiny_mlp(seed=2), root / "m000" / "2")
            load = callers.submit(
                lazy.stub.RepositoryModelLoad, pb.RepositoryModelLoadRequest(model_name="m001")
            )
            assert gate.entered.acquire(timeout=30)  # of the reload
            gate.open.set()
            load.result(30)
            assert waiting.result(30).shape == (1, 3)
            np.testing.assert_array_equal(lazy.predict("m001"), expected(seed=2))
    names = [
        lane.name
        for model in lazy.service.catalog.models()
        for v in model.versions
        for lane in v.lanes.values()
    ]
    assert len(names) == len(set(names))
    assert ("m001/2/fused" in names) if change == "load" else not names


@both_fronts
def test_a_server_stops_while_a_model_is_loaded(front: str, root: Path, gate: Gate) -> None:
    with ThreadPoolExecutor(1) as caller:
        with Lazy(front, root, drain_timeout_s=0.2) as lazy:
            gate.open.clear()
            waiting = caller.submit(lazy.predict, "m001")
            assert gate.entered.acquire(timeout=30)
            threading.Timer(1.0, gate.open.set).start()
            began = time.monotonic()
        assert time.monotonic() - began < 20
        with pytest.raises(PredictError):
            waiting.result(30)
