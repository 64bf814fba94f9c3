# SPDX-License-Identifier: Apache-2.0
"""The task that follows the repository, beside models and loads that go wrong."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest

from fused_mlp.models import save
from fused_mlp.models.repository import repository
from fused_mlp.models.repository.repository import Repository
from fused_mlp.service import app
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.reload import reloader
from fused_mlp.service.reload.reloader import Reloader
from fused_mlp.service.settings.settings import Settings
from tests.support.fleet import WIDTH, make_fleet, tiny_mlp
from tests.support.puppet import PuppetService
from tests.support.server import environment, free_port


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("expected another policy"),
        RecursionError("expected another policy"),
        OSError("expected another policy"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_model_that_is_refused_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    make_fleet(tmp_path, 1)
    refresh, followed = Catalog.refresh, threading.Event()

    def refuse(catalog: Catalog, name: str, held: Collection[int]) -> None:
        if name == "m001":
            raise error
        refresh(catalog, name, held)
        followed.set()

    monkeypatch.setattr(Catalog, "refresh", refuse)
    with PuppetService(model_repository=tmp_path, reload="poll:0.01", backend="auto") as puppet:
        for name in ("m001", "m002"):
            save(tiny_mlp(), tmp_path / name / "1")
        assert followed.wait(30)
        assert "m002" in puppet.service.catalog.served_versions()
    assert "m001: keeping the current version: expected another policy" in caplog.text
    assert ("Traceback" in caplog.text) != isinstance(error, InvalidInput)


def test_what_cannot_be_watched_is_polled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_watch(_: Reloader) -> None:
        raise OSError("OS file watch limit reached")

    monkeypatch.setattr(Reloader, "_watch", no_watch)
    monkeypatch.setattr(Settings, "reload_interval_s", 0.01)
    make_fleet(tmp_path, 1)
    with PuppetService(model_repository=tmp_path, reload="watch", backend="auto") as puppet:
        save(tiny_mlp(), tmp_path / "m001" / "1")
        puppet.wait_for(lambda: "m001" in puppet.service.catalog.served_versions())
    assert (
        "the repository cannot be watched and is polled instead: OS file watch limit reached" in caplog.text
    )


def test_a_look_at_canaries_that_fails_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "CANARIES_EVERY_S", 0.01)
    looked, looks = threading.Event(), [RuntimeError("a look")]

    def look() -> list[object]:
        if looks:
            raise looks.pop()
        looked.set()
        return []

    puppet = PuppetService(backend="auto")
    monkeypatch.setattr(puppet.service.catalog, "models_with_canary", look)
    with puppet:
        assert looked.wait(10)
    assert "RuntimeError: a look" in caplog.text


LOADS_FOR_EVER = """
import threading
from fused_mlp.service import app
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.versions.loading import Loader
from fused_mlp.service.settings.environment import load_settings

def refresh(*_):
    print("loading", flush=True)
    threading.Event().wait()

Catalog.refresh = refresh
if load_settings().load == "lazy":
    Loader.load_version = refresh
app.MAX_WAIT_FOR_LOADS_S = 0.1
from fused_mlp.service.process import serve

raise SystemExit(serve(load_settings()))
"""


@pytest.mark.parametrize("load", ["eager", "lazy"])
def test_a_load_does_not_hold_up_the_end(tmp_path: Path, load: str) -> None:
    """One of a version that came, or one that a request waits for."""
    make_fleet(tmp_path, 1)
    port, drain_timeout_s = free_port(), 0.2
    settings = environment(
        model_repository=tmp_path,
        reload="poll:0.05",
        load=load,
        grpc_port=port,
        drain_timeout_s=drain_timeout_s,
    )
    with subprocess.Popen(
        [sys.executable, "-c", LOADS_FOR_EVER], env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            assert any("try " in line.decode() for line in server.stdout)  # the end of the banner
            if load == "eager":
                save(tiny_mlp(), tmp_path / "m001" / "1")
            else:
                with Client(f"127.0.0.1:{port}") as client, pytest.raises(PredictError):
                    client.predict("m000", np.zeros((1, WIDTH), np.float32), timeout_s=0.2)
            assert b"loading\n" in server.stdout
            server.send_signal(signal.SIGTERM)
            assert server.wait(10) == 0
            assert "a load has not ended" in server.stderr.read().decode()
        finally:
            server.kill()


def test_a_watched_repository_that_was_away_is_followed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells of no changes in a folder that is another one than before."""
    monkeypatch.setattr(Settings, "reload_interval_s", 0.02)
    root = tmp_path / "root"
    make_fleet(root, 1)
    with PuppetService(model_repository=root, reload="watch", backend="auto") as puppet:
        shutil.rmtree(root)
        puppet.wait_for(lambda: bool(puppet.service.catalog.repository.problems))
        make_fleet(root, 1)
        save(tiny_mlp(), root / "m001" / "1")
        puppet.wait_for(lambda: "m001" in puppet.service.catalog.served_versions())
        save(tiny_mlp(), root / "m002" / "1")
        puppet.wait_for(lambda: "m002" in puppet.service.catalog.served_versions())


@pytest.mark.parametrize("turns", range(5))
def test_a_look_that_is_asked_for_as_the_server_stops_does_not_keep_it_from_stopping(
    tmp_path: Path, turns: int
) -> None:
    """`turns`: of the loop between the two, since a cancellation can meet the wait for a look at any of its steps."""
    make_fleet(tmp_path, 1)

    async def ask_and_stop(reloader: Reloader) -> None:
        reloader.ask()
        for _ in range(turns):
            await asyncio.sleep(0)
        stopped, _ = await asyncio.wait([asyncio.ensure_future(reloader.stop())], timeout=20)
        assert stopped

    with PuppetService(model_repository=tmp_path, reload="poll:60", backend="auto") as puppet:
        puppet.run(ask_and_stop(puppet.service.reloader))


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A share that does not answer until it is set; set at the end of the test."""
    answers, look = threading.Event(), Repository._look

    def hang(self: Repository, problems: list[str]) -> object:
        answers.wait()
        return look(self, problems)

    monkeypatch.setattr(Repository, "_look", hang)
    yield answers
    answers.set()


def test_a_share_that_does_not_answer_is_told_of(
    tmp_path: Path,
    hung: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(reloader, "MAX_SILENCE_S", 0.05)
    monkeypatch.setattr(repository, "MAX_SILENCE_S", 0.05)
    make_fleet(tmp_path, 1)
    with PuppetService(model_repository=tmp_path, reload="poll:0.01", backend="auto") as puppet:
        puppet.wait_for(lambda: puppet.metric("fused_mlp_repository_problems") == 1)
        puppet.wait_for(lambda: "new versions are not loaded until it does" in caplog.text)
        assert f"{tmp_path} has not answered for" in caplog.text
        save(tiny_mlp(), tmp_path / "m001" / "1")
        hung.set()
        puppet.wait_for(lambda: "m001" in puppet.service.catalog.served_versions())
        assert puppet.metric("fused_mlp_repository_problems") == 0


HANGS_FOR_EVER = """
import threading
from fused_mlp.models.repository.repository import Repository
from fused_mlp.service import app
from fused_mlp.service.access.reloading import Reload
from fused_mlp.service.settings.environment import load_settings

def hang(*_):
    print("hangs", flush=True)
    threading.Event().wait()

Repository._look = Reload.poll = hang
app.MAX_WAIT_FOR_LOADS_S = 0.1
from fused_mlp.service.process import serve

raise SystemExit(serve(load_settings()))
"""


@pytest.mark.parametrize("reload", ["poll:0.05", "off"])
def test_a_share_that_does_not_answer_does_not_hold_up_the_end(tmp_path: Path, reload: str) -> None:
    """With "off" only the policy file in it is looked at."""
    make_fleet(tmp_path, 1)
    settings = environment(model_repository=tmp_path, reload=reload, drain_timeout_s=0.2)
    with subprocess.Popen(
        [sys.executable, "-c", HANGS_FOR_EVER], env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as server:
        try:
            assert server.stdout is not None
            assert b"hangs\n" in server.stdout
            server.terminate()
            assert server.wait(10) == 0
            assert server.stderr is not None
            assert b" stopped" in server.stderr.read()
        finally:
            server.kill()
