# SPDX-License-Identifier: Apache-2.0
"""The first moments of a real process: signals count from the start, ports are bound before models are loaded."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest

from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client import Client
from fused_mlp.service.client.admin import AdminClient
from fused_mlp.service.fronts.selection import native_front_problem
from tests.support.fronts import both_fronts
from tests.support.server import COMMAND, Server, environment, free_port, run_to_exit
from tests.support.waiting import wait_until

X = [0.0] * 64
# A server whose only kernel says that it is being built, and then waits for a line on stdin.
STUCK = """
import sys
from fused_mlp import kernels
from fused_mlp.kernels import registry

(cpu,) = [b for b in kernels.backends("fused", "cpu") if b.name == "cpu"]

def build(mlp, threads):
    print("building", flush=True)
    assert sys.stdin.readline()
    return cpu.build(mlp, threads)

registry._BACKENDS[:] = [kernels.Backend("stuck", "fused", "cpu", 9, cpu.unavailable, build)]
from fused_mlp.service.cli import main
main()
"""


class StuckServer(Server):
    """In the middle of loading its model, until `release` is called."""

    def __init__(self, **settings: object) -> None:
        port = free_port()
        self.metrics_url = f"http://127.0.0.1:{port}"
        super().__init__(command=[sys.executable, "-c", STUCK, "serve"], metrics_port=port, **settings)

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "building\n", self.stop()
        loading = re.compile(r"loading models from \S+, then listening on (\S+)")
        wait_until(lambda: loading.search(self.log()))
        self.target = loading.findall(self.log())[0]

    def release(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        super().wait_until_ready()


@both_fronts
def test_connections_are_refused_while_models_are_loaded(front: str) -> None:
    """A client that has other servers tries those at once; the metrics port says what it waits for."""
    with StuckServer(front=front) as server:
        assert server.get("/healthz") == (200, "ok\n")
        assert server.get("/readyz") == (503, "not ready: loading models\n")
        status = json.loads(server.get("/status.json")[1])
        assert (status["ready"], status["models"][0]["versions"][0]["state"]) == (False, "LOADING")
        assert 'fused_mlp_model_info{model="digits",state="LOADING"' in server.get("/metrics")[1]
        host, _, port = server.target.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        with socket.socket() as another, pytest.raises(OSError, match="in use"):
            another.bind((host, int(port)))
        server.release()
        assert server.get("/readyz") == (200, "ready\n")
        with Client(server.target) as client:
            assert client.health("digits") == "SERVING"
            assert client.predict("digits", X).variant == "fused"
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


@pytest.mark.parametrize("policy", ["round_robin", "pick_first"])
def test_a_stock_client_loses_no_call_while_a_restarted_server_loads(front: str, policy: str) -> None:
    """Of two servers one is still loading: no retry policy, no health checks."""
    rows = np.zeros((1, 64), np.float32)
    request = pb.PredictRequest(model="digits", input=pb.Tensor(shape=rows.shape, data=rows.tobytes()))
    with StuckServer(front=front) as loading, Server(front=front) as serving:
        options = [("grpc.service_config", json.dumps({"loadBalancingConfig": [{policy: {}}]}))]
        with grpc.insecure_channel(f"ipv4:{loading.target},{serving.target}", options=options) as channel:
            stub = Stub(channel, pb, "Inference")
            for _ in range(50):
                assert stub.Predict(request, timeout=20).version == 1
            loading.release()
            for _ in range(50):
                assert stub.Predict(request, timeout=20).version == 1


@both_fronts
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_loading_ends_the_process_at_once(front: str, number: signal.Signals) -> None:
    with StuckServer(front=front) as server:
        server.signal(number)
        assert server.wait() == 128 + number
        assert "stopped while loading" in server.log()


HUNG = """
import threading
from fused_mlp.models.repository import repository
from fused_mlp.service import app, process
from fused_mlp.service.settings.environment import load_settings

def hang(*_, **options):
    print("hangs", flush=True)
    threading.Event().wait()

repository.Repository.scan = hang
app.MAX_SILENCE_S = 0.05
raise SystemExit(process.serve(load_settings()))
"""


def test_a_share_that_does_not_answer_at_the_start_is_told_of_and_a_signal_ends_the_wait() -> None:
    command = [sys.executable, "-c", HUNG]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            assert server.stdout.readline() == "hangs\n"
            assert "has not answered for 0.05 s: the start waits for it" in server.stderr.readline()
            server.send_signal(signal.SIGTERM)
            assert server.wait(10) == 128 + signal.SIGTERM
        finally:
            server.kill()


@pytest.mark.parametrize("which", ["grpc_port", "metrics_port", "admin_port"])
def test_a_port_in_use_is_told_before_models_are_loaded(front: str, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # Told even before the repository is searched.
        done = run_to_exit(front=front, model_repository="/none", **{which: port})
    what = {"grpc_port": "gRPC"}.get(which, which.removesuffix("_port"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"error: cannot listen on 127.0.0.1:{port} for {what}: Address already in use; set FUSED_MLP_{which.upper()}"
    )
    assert done.stderr.count("\n") == 1


def test_one_port_for_two_purposes_is_told(front: str) -> None:
    port = free_port()
    done = run_to_exit(front=front, grpc_port=port, admin_port=port)
    assert done.returncode == 1
    assert f"127.0.0.1:{port} for admin: Address already in use; set FUSED_MLP_ADMIN_PORT" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_told(front: str, host: str) -> None:
    done = run_to_exit(front=front, host=host)
    assert done.returncode == 1
    assert f"cannot listen on {host}:0 for gRPC: " in done.stderr
    assert "FUSED_MLP_HOST" in done.stderr
    assert done.stderr.count("\n") == 1


@both_fronts
def test_a_server_that_answers_fused_does_not_load_torch(front: str) -> None:
    with Server(front=front, admin_port=(port := free_port())) as server, Client(server.target) as client:
        client.predict("digits", X)
        server.get("/metrics")
        maps = Path(f"/proc/{server.process.pid}/maps")
        assert "libtorch" not in maps.read_text()
        with AdminClient(f"127.0.0.1:{port}", timeout_s=60) as admin:
            admin.set_policy(variant="unfused")
        assert client.predict("digits", X).variant == "unfused"
        assert "libtorch" in maps.read_text()


def test_the_native_front_does_not_load_grpc() -> None:
    if problem := native_front_problem():
        pytest.skip(problem)
    with Server(front="native") as server, Client(server.target) as client:
        client.predict("digits", X)
        assert "cygrpc" not in Path(f"/proc/{server.process.pid}/maps").read_text()


# As where libnghttp2 is not installed: the error is the dynamic linker's.
NO_NGHTTP2 = """
import sys
class NoNghttp2:
    def find_spec(self, name, path=None, target=None):
        if name == "fused_mlp.service._front":
            raise ImportError("libnghttp2.so.14: cannot open shared object file: No such file or directory", name=name)
sys.meta_path.insert(0, NoNghttp2())
"""


def test_without_libnghttp2_the_python_front_serves_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_NGHTTP2)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Server(front="auto") as server, Client(server.target) as client:
        assert client.predict("digits", X).variant == "fused"
        log = server.log()
    (line,) = [line for line in log.splitlines() if "libnghttp2" in line]
    assert "the Python front serves" in line
    assert "install the package libnghttp2-14" in line
    assert "Traceback" not in log


def test_the_native_front_asked_for_without_libnghttp2_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_NGHTTP2)
    result = subprocess.run(
        COMMAND,
        env=environment(front="native") | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 1
    (line,) = [line for line in result.stderr.splitlines() if "libnghttp2" in line]
    assert line.startswith("error: FUSED_MLP_FRONT=native: ")


def test_without_torch_settings_that_need_it_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    without_torch = {"PYTHONPATH": str(tmp_path)}
    for settings in ({"variant": "unfused"}, {"policy": '{"digits": {"shadow": 0.1}}'}):
        result = subprocess.run(
            COMMAND,
            env=environment(**settings) | without_torch,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.returncode == 1
        errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
        assert errors == ["error: the unfused variant needs torch, which is not installed: make install"]
        assert "Traceback" not in result.stderr


def as_process_1() -> list[str]:
    """What makes a command process 1, which has no default action for signals; empty where that is not allowed."""
    command = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    allowed = (
        shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    )
    return command if allowed else []


@pytest.mark.parametrize("process_1", [False, True])
def test_a_signal_during_the_first_import_is_not_lost(tmp_path: Path, process_1: bool) -> None:
    """typer is the first package that is imported; here it takes forever."""
    prefix = as_process_1() if process_1 else []
    if process_1 and not prefix:
        pytest.skip("this process may not make process namespaces")
    (tmp_path / "typer.py").write_text(
        "import os, threading\nprint(os.getpid(), flush=True)\nthreading.Event().wait()\n"
    )
    process = subprocess.Popen(
        [*prefix, *COMMAND],
        env=environment() | {"PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        number = process.stdout.readline().strip()
        assert (number == "1") == process_1
        # Seen from here, process 1 has another number: it is the only child of unshare.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        pid = int(children.read_text()) if process_1 else process.pid
        try:
            os.kill(pid, signal.SIGTERM)
            assert process.wait(30) == 128 + signal.SIGTERM
        finally:
            process.kill()
