# SPDX-License-Identifier: Apache-2.0
"""The comparison with other servers: what is measured, left out and written, and that nothing stays running."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.docs.figures.comparison import servers_setup, servers_table, servers_versions
from bench.docs.registry import Results
from bench.serving import compared, processes, servers
from bench.serving.compared import SERVERS, Server
from bench.serving.load import PROTOCOLS, Load, verify
from bench.serving.peers import mlserver_settings
from bench.serving.peers.venvs import VENVS, PeerUnavailable
from bench.serving.systems import System

SAMPLE = {"rate": 100.0, "p50_ms": 1.0, "p99_ms": 2.0, "cpu_us": 50.0}
PARENT_OF_AN_ORPHAN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(1, flush=True)
child.wait()
"""


class FakeSystem:
    """Stands for a started server."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log

    def __enter__(self) -> FakeSystem:
        self._log.append(f"start {self.name}")
        return self

    def __exit__(self, *_: object) -> None:
        self._log.append(f"stop {self.name}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, with three servers: ours, one that works, and one that cannot be installed."""
    happened: list[str] = []

    def fake(title: str, ours: bool = False, fails: bool = False) -> Server:
        def start(*_: Path) -> Any:
            if fails:
                raise PeerUnavailable("no wheel\nfor this Python")
            return FakeSystem(title, happened)

        return Server(title, "gRPC", "as it is", "grpcio", start, ours=ours)

    three = {"fused": fake("ours", ours=True), "missing": fake("missing", fails=True), "peer": fake("peer")}
    monkeypatch.setattr(servers, "SERVERS", three)
    monkeypatch.setattr(servers, "make_repository", lambda folder: folder)
    monkeypatch.setattr(servers, "verify", lambda system, *_: happened.append(f"verify {system.name}"))
    monkeypatch.setattr(servers, "measure_loads", lambda *_: {"128": SAMPLE})
    return happened


def compare(tmp_path: Path, rounds: int) -> servers.Comparison:
    return servers.compare(list(servers.SERVERS), rounds, 0.1, tmp_path, Console(file=io.StringIO()))


def test_one_server_runs_at_a_time_and_each_has_its_turn_in_every_round(
    tmp_path: Path, log: list[str]
) -> None:
    found = compare(tmp_path, rounds=2)
    turn = [f"{what} {name}" for name in ("ours", "peer") for what in ("start", "verify", "stop")]
    assert log == turn * 2
    assert {name: len(samples["128"]) for name, samples in found.samples.items()} == {"fused": 2, "peer": 2}
    assert set(found.versions) == {"grpcio"}


def test_a_peer_that_cannot_be_had_is_left_out_with_the_reason_in_one_line(
    tmp_path: Path, log: list[str]
) -> None:
    found = compare(tmp_path, rounds=1)
    assert found.left_out == {"missing": "no wheel for this Python"}
    assert "missing" not in found.as_result()["systems"]


def test_a_peer_that_answers_wrongly_in_a_later_round_has_no_samples(
    tmp_path: Path, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(system: FakeSystem, *_: object) -> None:
        assert not (system.name == "peer" and log.count("start peer") == 2), "not equal"

    monkeypatch.setattr(servers, "verify", verify)
    found = compare(tmp_path, rounds=3)
    assert found.left_out["peer"].startswith("not equal")
    assert log.count("start peer") == 2
    assert set(found.samples) == {"fused"}
    assert log[-1] == "stop ours"


def test_a_peer_whose_answer_cannot_be_read_is_left_out(
    tmp_path: Path, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(system: FakeSystem, *_: object) -> None:
        if system.name == "peer":
            json.loads("<html>")

    monkeypatch.setattr(servers, "verify", verify)
    found = compare(tmp_path, rounds=1)
    assert set(found.samples) == {"fused"}
    assert "Expecting value" in found.left_out["peer"]


def test_without_this_server_there_is_no_result(
    tmp_path: Path, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("wrong answer")

    monkeypatch.setattr(servers, "verify", fail)
    with pytest.raises(AssertionError, match="wrong answer"):
        compare(tmp_path, rounds=1)
    assert log == ["start ours", "stop ours"]


def test_the_result_has_the_versions_and_setups_that_the_figures_need(
    tmp_path: Path, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "servers.json"
    monkeypatch.setattr(servers.shutil, "which", lambda _: "h2load")
    monkeypatch.setattr(servers, "h2load_version", lambda: "1")
    monkeypatch.setattr(servers, "LOADS", {128: (8, 16)})
    assert servers.main(["--quick", "--output", str(output)]) == 0
    result = json.loads(output.read_text())
    assert {"grpcio", "torch", "h2load"} <= set(result["versions"])
    assert result["rounds"] == 1
    text = servers_table(Results(tmp_path))
    assert "| **ours (gRPC)** | 100 | 1.0 / 2.0 ms | 50 us |" in text
    assert "Not in this run: missing (no wheel for this Python)." in text
    assert f"* peer {result['versions']['grpcio']} (gRPC): as it is." in servers_setup(Results(tmp_path))


def test_the_table_is_sorted_by_requests_per_second_and_takes_medians(tmp_path: Path) -> None:
    def system(title: str, *rates: float) -> dict[str, Any]:
        found = servers.Comparison({"fused": {"128": [SAMPLE | {"rate": rate} for rate in rates]}})
        loads = found.as_result()["systems"]["fused"]["loads"]
        return {
            "title": title, "kind": "gRPC", "setup": "x", "package": title, "ours": False, "loads": loads,
        }  # fmt: skip

    machine = {"cpu": "X", "cores": 2, "python": "3.11"}
    result = {
        "machine": machine, "commit": "abc", "command": "python", "versions": {"slow": "1.2", "quick": "3.4"},
        "rounds": 3, "loads": [128], "shape": "1-2", "left_out": {},
        "systems": {"slow": system("slow", 1, 2, 900), "quick": system("quick", 7, 8, 9)},
    }  # fmt: skip
    (tmp_path / "servers.json").write_text(json.dumps(result))
    text = servers_table(Results(tmp_path))
    assert text.index("| quick 3.4 (gRPC) | 8 |") < text.index("| slow 1.2 (gRPC) | 2 |")
    assert "Not in this run" not in text
    assert servers_versions(Results(tmp_path)).endswith(": slow 1.2, quick 3.4.")


def test_every_server_has_a_venv_that_can_be_made_and_a_title_of_its_own() -> None:
    assert {server.venv for server in SERVERS.values()} - {""} <= set(VENVS)
    assert len({server.title for server in SERVERS.values()}) == len(SERVERS)
    assert [name for name, server in SERVERS.items() if server.ours] == ["fused", "unfused"]


def test_no_peer_gets_a_torch_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from bench.serving.peers import venvs

    def run(command: list[str]) -> None:
        (tmp_path / "build" / "kserve-peer" / "lib" / "python3" / "site-packages").mkdir(
            parents=True, exist_ok=True
        )
        for argument in command:
            if argument.startswith("--constraint="):
                constraints.append(Path(argument.partition("=")[2]).read_text())

    constraints: list[str] = []
    monkeypatch.setattr(venvs, "ROOT", tmp_path)
    monkeypatch.setattr(venvs, "_run", run)
    venvs.install("kserve-peer")
    (written,) = constraints
    assert written.startswith("torch==")
    assert "+" in written, "a version that no registry has"


def test_the_echo_of_the_native_front_answers(tmp_path: Path) -> None:
    with System("echo", [sys.executable, "-m", "bench.serving.native_echo", "1"], answers=False) as system:
        verify(system, tmp_path, "digits", 1)


def test_what_a_server_leaves_running_is_ended_with_it() -> None:
    with System("parent", [sys.executable, "-c", PARENT_OF_AN_ORPHAN]) as system:
        family = processes.family(system._process.pid)
        assert len(family) == 2
    assert processes._running(family) == []


def test_what_a_server_that_has_died_leaves_running_is_ended() -> None:
    with System("parent", [sys.executable, "-c", PARENT_OF_AN_ORPHAN]) as system:
        family = processes.family(system._process.pid)
        assert len(family) == 2
        os.kill(system._process.pid, signal.SIGKILL)
        system._process.wait()
        assert len(processes._running(family)) == 1
    try:
        assert processes._running(family) == []
    finally:
        processes.end(family)


def test_a_server_that_does_not_come_up_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def remember(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        started.append(popen(*arguments, **options))
        return started[-1]

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.serving.systems.subprocess.Popen", remember)
    monkeypatch.setattr("bench.serving.systems.wait_for_http", interrupt)
    with pytest.raises(KeyboardInterrupt):
        System(
            "x", [sys.executable, "-c", "import time; time.sleep(600)"], port=1, ready="http://127.0.0.1:1/"
        )
    (process,) = started
    assert process.returncode is not None


def test_answers_that_are_errors_of_grpc_fail_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = FakeSystem("peer", [])
    load = Load(tmp_path / "body", 1, 1, answer_bytes=100)
    monkeypatch.setattr(Load, "_run_h2load", lambda *_: (10, 5.0, 10 * 99))
    assert load.run(target, 10) == (10, 5.0)  # type: ignore[arg-type]
    monkeypatch.setattr(Load, "_run_h2load", lambda *_: (10, 5.0, 9 * 100))
    with pytest.raises(AssertionError, match="peer answered requests with errors"):
        load.run(target, 10)  # type: ignore[arg-type]


def test_json_has_the_same_rows_as_raw_bytes() -> None:
    import numpy as np

    rows = json.loads(PROTOCOLS["JSON"].body("mnist", 2))["rows"]
    assert np.array(rows, np.float32).tobytes() == PROTOCOLS["bytes"].body("mnist", 2)


def test_mlserver_gets_its_ports_its_runtime_and_batches(tmp_path: Path) -> None:
    mlserver_settings.prepare(tmp_path / "settings", compared.MODEL, 1, 2)
    settings, model = (
        json.loads((tmp_path / "settings" / name).read_text())
        for name in ("settings.json", "model-settings.json")
    )
    assert (settings["http_port"], settings["grpc_port"], settings["host"]) == (1, 2, "127.0.0.1")
    assert model["max_batch_size"] > 1
    module, _, name = model["implementation"].rpartition(".")
    path = Path(servers.__file__).parents[2].joinpath(*module.split(".")).with_suffix(".py")
    assert f"class {name}(" in path.read_text()
