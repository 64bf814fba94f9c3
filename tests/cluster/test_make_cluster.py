# SPDX-License-Identifier: Apache-2.0
"""`make cluster` as it is run: what it says to try works, a replica that dies is told of, Ctrl-C leaves nothing; and
its parts, where something is wrong."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from deploy.cluster.__main__ import RESTART_AFTER_S, look_after
from deploy.cluster.envoy import wait_for
from deploy.cluster.prometheus import start_prometheus
from deploy.cluster.replica import Place, Replica
from fused_mlp.service.local import child_process
from tests.support.server import demo_copy

COMMAND = [sys.executable, "-m", "deploy.cluster", "--replicas", "2", "--any-ports"]


def test_the_cluster_works_as_it_says_and_leaves_nothing() -> None:
    process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        said = "".join(iter(process.stdout.readline, "  stop        Ctrl-C\n"))
        for name in ("try", "with TLS"):
            predict = re.search(rf"^  {name} +(.*)$", said, re.MULTILINE)
            assert predict, said
            done = subprocess.run(shlex.split(predict[1]), capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        prometheus = re.search(r"Prometheus  (\S+)", said)
        assert prometheus, said
        wait_for(lambda: scraped(prometheus[1]), "Prometheus scrapes both servers and Envoy")
        replicas = [int(pid) for pid in re.findall(r"replica \d .*pid (\d+)", said)]
        assert len(replicas) == 2
        os.kill(replicas[0], signal.SIGKILL)
        os.kill(replicas[1], signal.SIGSTOP)
        assert process.stdout.readline() == "replica 0 has ended: Envoy sends its calls to the others\n"
        children = children_of(process.pid)
        assert len(children) >= 3
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait(10) == 0
        assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]
    finally:
        process.kill()
        process.communicate()


def scraped(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/targets", timeout=10) as response:
            return response.read().count(b'"health":"up"') == 3
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def test_a_cluster_whose_replicas_do_not_start_says_why_in_a_line(tmp_path: Path) -> None:
    settings = {"FUSED_MLP_MODEL_REPOSITORY": str(tmp_path / "nowhere")}
    done = subprocess.run(COMMAND, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(r"error: the server did not start: .*nowhere.*\n", done.stderr), done.stderr


def test_a_replica_that_does_not_come_back_is_tried_again(tmp_path: Path) -> None:
    repository = demo_copy(tmp_path / "models")
    replica = Replica(Place(), {"model_repository": repository})
    ended: dict[int, float] = {}
    try:
        assert list(look_after([replica], ended, now=0)) == []
        replica.signal(signal.SIGKILL)
        wait_for(lambda: not replica.running, "it has ended")
        (line,) = look_after([replica], ended, now=0)
        assert line == "replica 0 has ended: Envoy sends its calls to the others"
        repository.rename(tmp_path / "away")
        (line,) = look_after([replica], ended, now=RESTART_AFTER_S + 1)
        assert re.fullmatch(r"replica 0: the server did not start: .*; the next try is in 10 s", line)
        (tmp_path / "away").rename(repository)
        assert list(look_after([replica], ended, now=RESTART_AFTER_S + 2)) == []
        (line,) = look_after([replica], ended, now=2 * RESTART_AFTER_S + 2)
        assert line == f"replica 0 is back at {replica.target}, pid {replica.pid}"
    finally:
        replica.stop()


def test_replicas_that_do_not_end_are_waited_for_together() -> None:
    replicas = [Replica(Place(), {"drain_delay_s": 60}) for _ in range(2)]
    began = time.monotonic()
    Replica.stop_all(replicas, patience_s=1.5)
    assert 1.5 <= time.monotonic() - began < 3, "one after the other"
    assert not any(each.running for each in replicas)


class Ready(BaseHTTPRequestHandler):
    """Answers as another Prometheus would."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_prometheus_takes_another_port_than_one_that_is_taken(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Ready) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            process, address = start_prometheus(tmp_path, other.server_port, [], "127.0.0.1:1") or (None, "")
            assert process, "it is not installed"
            assert address != f"127.0.0.1:{other.server_port}"
            with urllib.request.urlopen(f"http://{address}/api/v1/status/config", timeout=10) as answer:
                assert b"127.0.0.1:1" in answer.read()
            child_process.end(process)
        finally:
            other.shutdown()
            thread.join()
