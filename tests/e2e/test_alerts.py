# SPDX-License-Identifier: Apache-2.0
"""Alerts that ring: a real Prometheus with the shipped rules, and a server on which the fault happens."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import numpy as np
import yaml

from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.protos.stubs import Stub
from tests.support.certificates import Certificates
from tests.support.prometheus import RULES, Prometheus
from tests.support.puppet import POISON, PuppetService
from tests.support.server import Server, demo_copy

X = np.ones((1, 64), np.float32)
REQUEST = pb.PredictRequest(model="digits", input=pb.Tensor(shape=X.shape, data=X.tobytes()))


@contextmanager
def over_and_over(step: Callable[[], None]) -> Iterator[None]:
    """On another thread, until the end of the block."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.02):  # a client that resets hundreds of calls in a second is sent away
            step()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def calls(puppet: PuppetService, timeout_s: float, *, cancel: bool) -> Iterator[None]:
    """Callers in a row until the end of the block; each waits in vain behind a kernel that hangs."""
    with grpc.insecure_channel(puppet.target) as channel:
        stub = Stub(channel, pb, "Inference")

        def step() -> None:
            call = stub.Predict.future(REQUEST, timeout=timeout_s)
            if cancel:
                puppet.wait_for(lambda: puppet.lane().queued_rows >= 1)
                call.cancel()
            with suppress(grpc.RpcError, grpc.FutureCancelledError):
                call.result()

        with over_and_over(step):
            yield


def wait_for_alert(prometheus: Prometheus, *names: str) -> None:
    until, missing = time.monotonic() + 60, set(names)
    while missing and time.monotonic() < until:
        with suppress(OSError, ValueError):  # not up yet
            missing -= {alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"]}
        time.sleep(0.2)  # another process scrapes in its own time
    assert not missing, f"{missing} did not fire"


def metrics_of(*servers: Server) -> list[str]:
    return [server.metrics_url.removeprefix("http://") for server in servers]


@contextmanager
def hung_server(folder: Path) -> Iterator[tuple[PuppetService, Prometheus]]:
    """Its kernel holds one request, so that all others wait in the queue."""
    with PuppetService() as puppet, grpc.insecure_channel(puppet.target) as channel:
        address = f"127.0.0.1:{puppet.service.metrics_port}"
        puppet.hold()
        held = Stub(channel, pb, "Inference").Predict.future(REQUEST)
        puppet.wait_entered()
        with Prometheus(folder, address, tls=False) as prometheus:
            yield puppet, prometheus
        held.cancel()


def test_deadlines_that_pass_ring(tmp_path: Path) -> None:
    with hung_server(tmp_path) as (puppet, prometheus), calls(puppet, 0.05, cancel=False):
        wait_for_alert(prometheus, "FusedMlpExpired")


def test_callers_that_give_up_ring(tmp_path: Path) -> None:
    with hung_server(tmp_path) as (puppet, prometheus), calls(puppet, 60, cancel=True):
        wait_for_alert(prometheus, "FusedMlpCancelled")


def test_a_kernel_that_fails_rings(tmp_path: Path) -> None:
    poisoned = np.full((1, 64), POISON, np.float32)
    request = pb.PredictRequest(
        model="digits", input=pb.Tensor(shape=poisoned.shape, data=poisoned.tobytes())
    )
    with PuppetService() as puppet, grpc.insecure_channel(puppet.target) as channel:

        def fail() -> None:
            with suppress(grpc.RpcError):
                Stub(channel, pb, "Inference").Predict(request)

        address = f"127.0.0.1:{puppet.service.metrics_port}"
        with Prometheus(tmp_path, address, tls=False) as prometheus, over_and_over(fail):
            wait_for_alert(prometheus, "FusedMlpErrors")


def test_slow_kernels_long_queues_and_callers_that_leave_ring(tmp_path: Path) -> None:
    with PuppetService() as puppet, grpc.insecure_channel(puppet.target) as channel:
        stub = Stub(channel, pb, "Inference")

        def step() -> None:
            """One call is cancelled while the kernel has it; some spend their deadline in the queue; one is slow."""
            puppet.hold()
            batches = len(puppet.kernel.batches)
            computed = stub.Predict.future(REQUEST)
            puppet.wait_for(lambda: len(puppet.kernel.batches) > batches)
            queued = [stub.Predict.future(REQUEST, timeout=0.15) for _ in range(5)]
            puppet.wait_for(lambda: puppet.lane().queued_rows >= 1 or all(call.done() for call in queued))
            slow = stub.Predict.future(REQUEST)
            for call in queued:
                with suppress(grpc.RpcError):
                    call.result()
            computed.cancel()
            puppet.wait_for(lambda: puppet.metric("fused_mlp_front_open_calls") == 1)
            puppet.release()
            assert slow.result().version == 1
            for _ in range(
                20
            ):  # quick batches lower the estimate, or a deadline of 0.15 s would be refused at once
                stub.Predict(REQUEST)

        address = f"127.0.0.1:{puppet.service.metrics_port}"
        with Prometheus(tmp_path, address, tls=False) as prometheus, over_and_over(step):
            wait_for_alert(prometheus, "FusedMlpWastedCompute", "FusedMlpQueuedLong", "FusedMlpSlow")


def test_a_full_queue_rings(tmp_path: Path) -> None:
    with PuppetService(queue_rows=4) as puppet, grpc.insecure_channel(puppet.target) as channel:
        puppet.hold()
        stub = Stub(channel, pb, "Inference")
        waiting = [stub.Predict.future(REQUEST)]
        puppet.wait_entered()
        waiting += [stub.Predict.future(REQUEST) for _ in range(4)]
        puppet.wait_for(lambda: puppet.lane().queued_rows == 4)
        address = f"127.0.0.1:{puppet.service.metrics_port}"
        with Prometheus(tmp_path, address, tls=False) as prometheus:
            wait_for_alert(prometheus, "FusedMlpQueueSaturated")
        puppet.release()
        assert all(call.result().version == 1 for call in waiting)


def send_many(stub: Stub, request: pb.PredictRequest) -> None:
    for _ in range(20):
        with suppress(grpc.RpcError):  # refused, as it should be
            stub.Predict(request)


def test_a_server_that_uses_all_its_cores_rings_also_beside_an_idle_one(tmp_path: Path) -> None:
    rows = np.ones((4096, 64), np.float32)
    request = pb.PredictRequest(model="digits", input=pb.Tensor(shape=rows.shape, data=rows.tobytes()))
    with ExitStack() as stack:
        busy, idle = stack.enter_context(Server()), stack.enter_context(Server())
        os.sched_setaffinity(busy.process.pid, {min(os.sched_getaffinity(0))})
        for thread in os.listdir(f"/proc/{busy.process.pid}/task"):  # all of them wait for one core
            os.sched_setaffinity(int(thread), {min(os.sched_getaffinity(0))})
        prometheus = stack.enter_context(Prometheus(tmp_path, *metrics_of(busy, idle), tls=False))
        for _ in range(4):
            channel = stack.enter_context(grpc.insecure_channel(busy.target))
            stack.enter_context(over_and_over(partial(send_many, Stub(channel, pb, "Inference"), request)))
        wait_for_alert(prometheus, "FusedMlpSaturated", "FusedMlpUnevenLoad")


def test_a_server_that_is_gone_rings(tmp_path: Path) -> None:
    with Server() as server, Prometheus(tmp_path, *metrics_of(server), tls=False) as prometheus:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with suppress(OSError, ValueError):
                if prometheus.query("fused_mlp_build_info"):
                    break
            time.sleep(0.1)  # another process scrapes in its own time
        server.stop()
        wait_for_alert(prometheus, "FusedMlpDown")


def test_versions_policies_and_files_that_cannot_be_used_ring(tmp_path: Path) -> None:
    root = demo_copy(tmp_path / "models")
    shutil.copytree(root / "digits", root / "only-here")
    (root / "digits" / "2").mkdir()
    (root / "digits" / "2" / "model.json").write_text("not JSON")
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"digits": {"version": 9}}))
    (tmp_path / "prometheus").mkdir()
    broken = iter(range(1_000_000))
    with (
        Server(model_repository=root, policy_file=policy) as server,
        Server() as other,
        Prometheus(tmp_path / "prometheus", *metrics_of(server, other), tls=False) as prometheus,
    ):
        wait_for_alert(prometheus, "FusedMlpModelNotReady", "FusedMlpPolicyNamesUnknown", "FusedMlpModelSkew")
        with over_and_over(lambda: policy.write_text("{" * next(broken)) and None):
            wait_for_alert(prometheus, "FusedMlpReloadFailed")


def test_a_repository_that_is_away_and_a_load_that_fails_ring(tmp_path: Path) -> None:
    root = demo_copy(tmp_path / "models")
    shutil.copytree(root / "digits", root / "lost")
    (tmp_path / "prometheus").mkdir()
    with Server(model_repository=root, reload="poll:0.1", load="lazy") as server:
        (root / "lost" / "1" / "model.safetensors").write_bytes(b"damaged")
        with grpc.insecure_channel(server.target) as channel, suppress(grpc.RpcError):
            stub = Stub(channel, pb, "Inference")
            stub.Predict(pb.PredictRequest(model="lost", input=REQUEST.input), timeout=20)
        root.rename(tmp_path / "away")
        with Prometheus(tmp_path / "prometheus", *metrics_of(server), tls=False) as prometheus:
            wait_for_alert(prometheus, "FusedMlpRepositoryProblems", "FusedMlpLoadFails")


def test_a_wrong_kernel_rings(tmp_path: Path) -> None:
    with PuppetService(shadow=1.0, policy='{"*": {"on_mismatch": "unfused"}}') as puppet:
        puppet.kernel.error = 1.0
        with grpc.insecure_channel(puppet.target) as channel:
            address = f"127.0.0.1:{puppet.service.metrics_port}"
            predict = Stub(channel, pb, "Inference").Predict
            with (
                Prometheus(tmp_path, address, tls=False) as prometheus,
                over_and_over(lambda: predict(REQUEST)),
            ):
                wait_for_alert(prometheus, "FusedMlpShadowMismatch", "FusedMlpVariantFallback")


class OtherRelease(BaseHTTPRequestHandler):
    """What a server of another release exposes."""

    def do_GET(self) -> None:
        text = b'fused_mlp_build_info{version="0.0.0",python="3.11",torch="",front="native"} 1\n'
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


def test_an_old_certificate_another_release_and_a_canary_that_is_rolled_back_ring(
    tmp_path: Path, certificates: Certificates
) -> None:
    certificate, key = certificates.sign_server("expires-soon", days=2)
    canary = {"to": "1/unfused", "steps": [50], "interval_s": 0.1}  # it gets no requests to judge it by
    settings = {
        "tls_certificate": certificate,
        "tls_key": key,
        "policy": json.dumps({"digits": {"canary": canary}}),
    }
    with Server(**settings) as server, ThreadingHTTPServer(("127.0.0.1", 0), OtherRelease) as other:
        threading.Thread(target=other.serve_forever).start()
        targets = [*metrics_of(server), f"127.0.0.1:{other.server_port}"]
        with Prometheus(tmp_path, *targets, tls=False) as prometheus:
            wait_for_alert(
                prometheus, "FusedMlpCertificateExpires", "FusedMlpBuildSkew", "FusedMlpCanaryRolledBack"
            )
        other.shutdown()


def test_every_alert_has_a_test() -> None:
    rules = yaml.safe_load((RULES / "alerts.yaml").read_text())["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules if f'"{rule["alert"]}"' not in Path(__file__).read_text()] == []
