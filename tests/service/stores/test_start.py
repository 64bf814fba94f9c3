# SPDX-License-Identifier: Apache-2.0
"""A server that starts from a store: its ports answer before anything is fetched, and what it has is served without
the store."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from fused_mlp import models
from fused_mlp.models import LayerSpec, Mlp, MlpSpec
from fused_mlp.protos import health_pb2
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.client.admin import AdminClient
from fused_mlp.service.fronts.selection import native_front_problem
from fused_mlp.service.reload import reloader
from fused_mlp.service.settings.settings import Settings
from fused_mlp.service.stores import mirror
from tests.service.stores import lying_store
from tests.support.fleet import WIDTH, tiny_mlp
from tests.support.puppet import PuppetService
from tests.support.server import free_port

lying_store.register()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Open it to let the store send the second half of files."""
    gate = threading.Event()
    monkeypatch.setattr(lying_store.LyingStore, "gate", gate)
    yield gate
    gate.set()


def store_service(tmp_path: Path, **settings: object) -> PuppetService:
    places = {"model_repository": f"lying://{tmp_path / 'remote'}", "repository_cache": tmp_path / "cache"}
    return PuppetService(**{"backend": "auto", **places, **settings})


def check_trailers(target: str) -> list[tuple[str, str]]:
    with grpc.insecure_channel(target) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        return list(check.with_call(health_pb2.HealthCheckRequest(), timeout=10)[1].trailing_metadata())


def get(puppet: PuppetService, path: str) -> tuple[int, str]:
    try:
        url = f"http://127.0.0.1:{puppet.service.metrics_port}{path}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("front", ["native", "python"])
def test_probes_are_answered_while_models_are_fetched(
    tmp_path: Path, gate: threading.Event, front: str
) -> None:
    if front == "native" and (problem := native_front_problem()):
        pytest.skip(problem)
    spec = MlpSpec.of_layers(512, [LayerSpec(out_features=1)])
    wide = Mlp(spec, {name: np.zeros(shape, np.float32) for name, shape in spec.shapes()})
    models.save(wide, tmp_path / "remote" / "wide" / "1")
    puppet = store_service(tmp_path, front=front)
    puppet.run(puppet.service.start())
    loading = asyncio.run_coroutine_threadsafe(puppet.service.load(), puppet._loop)
    try:
        assert get(puppet, "/healthz")[0] == 200
        puppet.wait_for(lambda: "fetching wide/1 from lying://" in get(puppet, "/readyz")[1])
        assert get(puppet, "/readyz")[0] == 503
        with pytest.raises(ConnectionRefusedError):  # clients try another server
            socket.create_connection(("127.0.0.1", puppet.service.grpc_port))
        gate.set()
        loading.result(30)
        assert get(puppet, "/readyz")[0] == 200
        with Client(puppet.target) as client:  # the largest message was not known when the port was bound
            assert client.predict("wide", np.zeros((4096, 512), np.float32)).output.shape == (4096, 1)
    finally:
        gate.set()
        puppet.run(puppet.service.stop())
        puppet._end_loop()


def test_a_start_from_the_cache_does_not_wait_for_the_store(
    tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.save(tiny_mlp(), tmp_path / "remote" / "tiny" / "1")
    gate.set()
    with store_service(tmp_path):
        pass
    models.save(tiny_mlp(2), tmp_path / "remote" / "tiny" / "2")
    gate.clear()
    with store_service(tmp_path) as puppet, Client(puppet.target) as client:  # while the store hangs
        assert client.predict("tiny", np.zeros((1, WIDTH), np.float32)).version == 1
        gate.set()  # what is new is taken when it comes, also where nothing is looked at later
        puppet.wait_for(lambda: client.predict("tiny", np.zeros((1, WIDTH), np.float32)).version == 2)


def test_a_version_that_cannot_be_fetched_is_shown_and_takes_no_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.save(tiny_mlp(), tmp_path / "remote" / "tiny" / "1")
    with store_service(tmp_path, reload="poll:0.02") as puppet, Client(puppet.target) as client:
        monkeypatch.setenv("LYING_STORE", "damage")
        models.save(tiny_mlp(2), tmp_path / "remote" / "tiny" / "2")

        def told() -> dict[int, tuple[str, str]]:
            return {v.version: (v.state, v.reason) for v in client.model("tiny").versions}

        puppet.wait_for(lambda: told().get(2, ("",))[0] == "UNAVAILABLE")
        assert "it could not be fetched: tiny/2/model.safetensors: expected SHA-256" in told()[2][1]
        assert client.predict("tiny", np.zeros((1, WIDTH), np.float32)).version == 1
        assert puppet.metric("fused_mlp_load_failures_total", model="tiny", version="2") == 1
        monkeypatch.delenv("LYING_STORE")
        puppet.wait_for(lambda: told()[2][0] == "READY")
        assert puppet.metric("fused_mlp_repository_problems") == 0


@pytest.mark.parametrize("how", ["down", "silent"])
def test_a_store_that_is_away_holds_up_no_other_repository(
    tmp_path: Path,
    gate: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    models.save(tiny_mlp(), tmp_path / "local" / "near" / "1")
    models.save(tiny_mlp(), tmp_path / "remote" / "far" / "1")
    if how == "down":
        monkeypatch.setenv("LYING_STORE", "down")
    monkeypatch.setattr(reloader, "MAX_SILENCE_S", 0.1)
    monkeypatch.setattr(Settings, "reload_interval_s", 0.02)
    places = f"lying://{tmp_path / 'remote'},{tmp_path / 'local'}"
    with (
        store_service(tmp_path, model_repository=places, reload="poll") as puppet,
        Client(puppet.target) as client,
    ):
        assert [model.name for model in client.models()] == ["near"]
        assert "connection refused" in caplog.text if how == "down" else "has not answered" in caplog.text
        if how == "down":
            assert puppet.metric("fused_mlp_repository_problems") == 1
            assert ("fused-mlp-repository-problem", "1") in check_trailers(puppet.target)
        models.save(tiny_mlp(), tmp_path / "local" / "near" / "2")  # is followed meanwhile
        puppet.wait_for(lambda: client.predict("near", np.zeros((1, WIDTH), np.float32)).version == 2)
        gate.set()
        monkeypatch.delenv("LYING_STORE", raising=False)
        puppet.wait_for(lambda: len(client.models()) == 2)
        puppet.wait_for(lambda: puppet.metric("fused_mlp_repository_problems") == 0)


def test_a_fetch_that_a_locked_cache_refused_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "MAX_LOCKED_S", 0.05)
    monkeypatch.setattr(Settings, "reload_interval_s", 0.05)
    monkeypatch.setattr(mirror, "FIRST_PAUSE_S", 0.05)
    models.save(tiny_mlp(), tmp_path / "remote" / "tiny" / "1")
    with store_service(tmp_path, reload="signal") as puppet, Client(puppet.target) as client:
        models.save(tiny_mlp(2), tmp_path / "remote" / "tiny" / "2")
        (path,) = (tmp_path / "cache").glob("*/.lock")
        with path.open("ab") as lock:  # as another process does
            fcntl.flock(lock, fcntl.LOCK_EX)
            puppet._loop.call_soon_threadsafe(puppet.service.ask_to_reload)
            puppet.wait_for(lambda: puppet.metric("fused_mlp_fetch_failures_total") >= 1)
        puppet.wait_for(lambda: client.predict("tiny", np.zeros((1, WIDTH), np.float32)).version == 2)
        puppet.wait_for(lambda: puppet.metric("fused_mlp_repository_problems") == 0)


@pytest.mark.parametrize("how", ["admin", "triton"])
def test_a_load_looks_at_the_store(
    tmp_path: Path,
    gate: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    gate.set()
    for name in ("other", "tiny"):
        models.save(tiny_mlp(), tmp_path / "remote" / name / "1")
    with (
        store_service(tmp_path, reload="off", admin_port=free_port(), allow_load=True) as puppet,
        Client(puppet.target) as client,
        AdminClient(puppet.admin_target) as admin,
        grpc.insecure_channel(puppet.target) as channel,
    ):
        stub = Stub(channel, oip, "GRPCInferenceService")

        def load() -> str:
            """What the answer complains of."""
            try:
                if how == "admin":
                    admin.load("tiny")
                else:
                    stub.RepositoryModelLoad(oip.RepositoryModelLoadRequest(model_name="tiny"), timeout=10)
            except PredictError as error:
                return str(error)
            return ""

        def versions(name: str) -> list[int]:
            return [v.version for v in client.model(name).versions]

        for name in ("other", "tiny"):
            models.save(tiny_mlp(2), tmp_path / "remote" / name / "2")
        assert load() == ""
        assert (versions("tiny"), versions("other")) == ([1, 2], [1])  # nothing else was asked for
        models.save(tiny_mlp(3), tmp_path / "remote" / "tiny" / "3")
        for lie, why in (("down", "connection refused"), ("silent", "has not answered for")):
            caplog.clear()
            gate.clear()
            monkeypatch.setenv("LYING_STORE", lie)
            monkeypatch.setattr(reloader, "MAX_SILENCE_AT_LOAD_S", 0.2)
            told = load()
            assert ("is served from what was fetched before" in told and why in told) == (how == "admin")
            assert f"tiny is loaded from what was fetched before: lying://{tmp_path}" in caplog.text
            assert why in caplog.text
            assert versions("tiny") == [1, 2]
        gate.set()
        monkeypatch.setattr(reloader, "MAX_SILENCE_AT_LOAD_S", 10)
        assert load() == ""  # also while the store is asked less often
        assert versions("tiny") == [1, 2, 3]
