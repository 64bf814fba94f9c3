# SPDX-License-Identifier: Apache-2.0
"""Start, signals and exit of a real process, and what it says when it cannot start."""

import json
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fused_mlp.service.client import Client, PredictError, RetryPolicy
from tests.support.fronts import both_fronts
from tests.support.peer import PREDICT, good_request
from tests.support.server import COMMAND, Server, demo_copy, environment, run_to_exit


def one_line(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, stderr
    assert "Traceback" not in stderr
    return lines[0]


def test_env_flag_serves_unfused(front: str) -> None:
    with Server(front=front, variant="unfused") as server, Client(server.target) as client:
        assert client.predict("digits", [0.0] * 64).variant == "unfused"
        assert server.metric("fused_mlp_requests_total", variant="unfused", code="OK") == 1
        assert server.metric("fused_mlp_requests_total", variant="fused", code="OK") == 0
        assert "unfused" in server.banner


@both_fronts
def test_sigterm_turns_unhealthy_and_exits_cleanly(front: str) -> None:
    with Server(front=front) as server, grpc.insecure_channel(server.target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="digits"))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        server.signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        started = time.monotonic()
        assert server.wait() == 0
        assert time.monotonic() - started < 10  # an open watch does not hold up the exit for the drain time


@both_fronts
def test_sigterm_answers_every_call_that_has_arrived(front: str) -> None:
    # Each waits for batch mates, much longer than a busy machine takes to send all: none is answered before the end.
    waiting = Server(front=front, max_wait_us=10_000_000, max_batch_rows=1024)
    with waiting as server, grpc.insecure_channel(server.target) as channel:
        predict = channel.unary_unary(PREDICT)
        calls = [predict.future(good_request(), timeout=120) for _ in range(200)]
        while server.metric("fused_mlp_queue_rows", model="digits") != 200:
            assert not any(call.done() for call in calls)
        server.signal(signal.SIGTERM)
        assert {call.code() for call in calls} == {grpc.StatusCode.OK}
        assert server.wait() == 0


@both_fronts
def test_second_signal_forces_the_exit(front: str) -> None:
    with Server(front=front, drain_timeout_s=600) as server, Client(server.target) as client:
        open_stream = client.stream("digits", _endless())
        next(open_stream)
        server.signal(signal.SIGTERM)
        with grpc.insecure_channel(server.target) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            while _serving(health):
                pass
        assert server.process.poll() is None  # the open stream keeps it
        server.signal(signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM
        open_stream.close()


def _endless():
    yield [0.0] * 64
    threading.Event().wait(60)  # ended by the cancelled stream long before


def _serving(health: health_pb2_grpc.HealthStub) -> bool:
    try:
        return health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    except grpc.RpcError:
        return False


def test_readiness_and_liveness(server: Server) -> None:
    assert server.get("/healthz") == (200, "ok\n")
    assert server.get("/readyz") == (200, "ready\n")
    assert server.get("/nonesuch")[0] == 404


@both_fronts
def test_health_knows_models_by_name(server: Server) -> None:
    with grpc.insecure_channel(server.target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "digits", "fused_mlp.v1.Inference", "inference.GRPCInferenceService"):
            assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == 1
        with pytest.raises(grpc.RpcError) as failure:
            health.Check(health_pb2.HealthCheckRequest(service="nonesuch"))
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND


def test_broken_version_is_reported_and_the_others_are_served(tmp_path: Path, front: str) -> None:
    root = demo_copy(tmp_path)
    broken = root / "digits" / "2"
    broken.mkdir()
    (broken / "model.json").write_bytes((root / "digits/1/model.json").read_bytes())
    (broken / "model.safetensors").write_bytes(b"not safetensors")
    (root / "hollow" / "1").mkdir(parents=True)
    once = RetryPolicy(attempts=1)
    with (
        Server(front=front, model_repository=root) as server,
        Client(server.target, retry=once) as client,
    ):
        assert client.predict("digits", [0.0] * 64).version == 1
        for model, version in (("digits", 2), ("hollow", 1), ("hollow", None)):
            with pytest.raises(PredictError, match="could not be loaded") as failure:
                client.predict(model, [0.0] * 64, version=version)
            assert failure.value.code is grpc.StatusCode.UNAVAILABLE
        states = {v.version: (v.state, v.reason) for v in client.model("digits").versions}
        assert states[1][0] == "READY"
        assert states[2][0] == "UNAVAILABLE"
        assert states[2][1].startswith("digits/2/model.safetensors: not a readable safetensors file")
        assert "digits/2" in server.log()


def test_repository_that_does_not_exist(tmp_path: Path) -> None:
    result = run_to_exit(model_repository=tmp_path / "nonesuch")
    assert result.returncode == 1
    assert "nonesuch" in one_line(result.stderr)


def test_repository_in_which_everything_is_broken(tmp_path: Path) -> None:
    weights = demo_copy(tmp_path) / "digits/1/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    result = run_to_exit(model_repository=tmp_path)
    assert result.returncode == 1
    assert "digits/1" in one_line(result.stderr)


@both_fronts
@pytest.mark.parametrize("which", ["grpc_port", "metrics_port"])
def test_port_in_use(front: str, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run_to_exit(front=front, **{which: taken.getsockname()[1]})
    assert result.returncode == 1
    said = one_line(result.stderr)
    assert f"FUSED_MLP_{which.upper()}" in said


def test_setting_with_a_bad_value() -> None:
    result = run_to_exit(variant="half-fused")
    assert result.returncode == 1
    said = one_line(result.stderr)
    assert "FUSED_MLP_VARIANT" in said
    assert "'half-fused'" in said


def test_backend_by_name_that_cannot_run_lists_those_that_can() -> None:
    result = run_to_exit(backend="nonesuch")
    assert result.returncode == 1
    assert "torch" in one_line(result.stderr)


@both_fronts
def test_listens_on_ipv6_too(front: str) -> None:
    if not has_ipv6():
        pytest.skip("no IPv6 loopback here")
    with Server(front=front, host="::1", metrics_host="::1") as server:
        assert server.target.startswith("[::1]:")
        assert f"--target {server.target}" in server.banner
        assert server.get("/readyz") == (200, "ready\n")
        with Client(server.target) as client:
            assert client.health() == "SERVING"


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_json_logs_are_json_to_the_last_line(front: str) -> None:
    process = subprocess.Popen(
        COMMAND,
        env=environment(front=front, log_format="json", varient="unfused"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(json.loads(line))
        if lines[-1]["message"].startswith("try "):
            process.terminate()
    assert process.wait(30) == 0
    assert process.stdout.read() == ""
    process.stdout.close()
    process.stderr.close()
    messages = [line["message"] for line in lines]
    assert any("gRPC 127.0.0.1:" in message for message in messages)
    assert "FUSED_MLP_VARIENT is not a setting; did you mean FUSED_MLP_VARIANT?" in messages
    assert messages[-1] == "stopped"
