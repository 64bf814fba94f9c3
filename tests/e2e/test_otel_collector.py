# SPDX-License-Identifier: Apache-2.0
"""The way to a collector: one that is slow, away, back again; headers; variables that make no sense; the end."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fused_mlp.service.client import Client
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.server import Server, free_port, run_to_exit

X = np.zeros(64, np.float32)


def test_a_slow_collector_delays_no_request(receiver: OtlpReceiver, otel: pytest.MonkeyPatch) -> None:
    otel.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    otel.setenv("OTEL_TRACES_SAMPLER", "always_on")
    receiver.hold()
    with Server() as server, Client(server.target) as client:
        for _ in range(20):
            client.predict("digits", X)
        receiver.release()
        receiver.wait_for(len)
        # The first export may have begun with any of the first requests; the buffer holds four more.
        client.predict("digits", X, request_id="after")
        dropped = server.metric("fused_mlp_otel_dropped_requests_total")
        assert server.metric("fused_mlp_requests_total", code="OK") == 21
        assert 0 < dropped <= 16


def test_a_collector_that_comes_back_gets_spans_again(otel: pytest.MonkeyPatch) -> None:
    port = free_port()
    otel.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    otel.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    otel.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    with Server() as server, Client(server.target) as client:
        client.predict("digits", X)
        while server.metric("fused_mlp_otel_spans_total", result="failed") < 5:
            pass  # each look is a request to the server
        with OtlpReceiver(http_port=port) as receiver:
            client.predict("digits", X)
            receiver.wait_for(lambda spans: len(spans) >= 5)
        log = server.stop()
    [why] = re.findall(rf"spans cannot be exported to http://127.0.0.1:{port}: (.*)", log)
    assert "Failed to export" in why
    assert log.count(f"spans are exported again to http://127.0.0.1:{port}") == 1
    assert "Traceback" not in log


@pytest.fixture
def silent() -> Iterator[str]:
    """An endpoint that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_collector_that_never_answers_does_not_hold_up_the_end(
    otel: pytest.MonkeyPatch, silent: str, protocol: str
) -> None:
    otel.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", silent)
    otel.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    with Server() as server, Client(server.target) as client:
        client.predict("digits", X)
        began = time.monotonic()
        log = server.stop()
        assert time.monotonic() - began < 8  # 2 s for the last spans, the rest for a busy machine
    assert server.process.returncode == 0
    assert "the last spans were not exported" in log


def test_what_was_answered_before_the_end_is_exported(
    receiver: OtlpReceiver, otel: pytest.MonkeyPatch
) -> None:
    otel.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    with Server() as server, Client(server.target) as client:
        for _ in range(200):
            client.predict("digits", X)
    # One span of a batch and four of its request; batches of one, for one caller waits for each answer.
    assert len(receiver.wait_for(lambda spans: len(spans) >= 1000)) == 1000


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_headers_and_compression_go_to_the_collector(
    receiver: OtlpReceiver, otel: pytest.MonkeyPatch, protocol: str
) -> None:
    otel.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    otel.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    otel.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc,x-tenant=shop")
    if protocol != "grpc":
        otel.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.http_endpoint)
    with Server() as server, Client(server.target) as client:
        client.predict("digits", X)
        receiver.wait_for(len)
        log = server.stop()
    assert receiver.headers["authorization"] == "Bearer abc"
    assert receiver.headers["x-tenant"] == "shop"
    assert "Bearer" not in log


def test_variables_that_cannot_be_used_are_ignored_with_a_warning(
    receiver: OtlpReceiver, otel: pytest.MonkeyPatch
) -> None:
    """As OpenTelemetry demands: an operator sets them for all kinds of programs at once."""
    unusable = {
        "OTEL_TRACES_SAMPLER": "xray",
        "OTEL_TRACES_SAMPLER_ARG": "often",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "soon",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd",
        "OTEL_BSP_MAX_QUEUE_SIZE": "9" * 30,
    }
    for name, value in unusable.items():
        otel.setenv(name, value)
    with Server() as server, Client(server.target) as client:
        client.predict("digits", X)
        receiver.wait_for(lambda spans: len(spans) == 5)
        warnings = [line for line in server.log().splitlines() if "WARNING" in line]
    assert len(warnings) == len(unusable)
    for name, value in unusable.items():
        assert any(f"{name} is ignored: expected " in line and repr(value) in line for line in warnings)


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector", "expected a URL such as http://localhost:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:99999", "expected a URL such as"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4317", "expected a URL such as"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem", "no such file: '/nowhere/ca.pem'"),
    ],
)
def test_a_collector_that_cannot_be_reached_as_said_is_refused_in_one_line(
    otel: pytest.MonkeyPatch, variable: str, value: str, text: str
) -> None:
    otel.setenv(variable, value)
    ended = run_to_exit()
    assert ended.returncode != 0
    [line] = ended.stderr.strip().splitlines()
    assert variable in line
    assert text in line


def test_a_missing_package_is_named_with_the_extra_that_has_it(
    otel: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An import that fails as if the exporter over gRPC were not installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.modules['opentelemetry.exporter.otlp.proto.grpc.trace_exporter'] = None\n"
    )
    otel.setenv("PYTHONPATH", str(tmp_path))
    ended = run_to_exit()
    assert ended.returncode != 0
    [line] = ended.stderr.strip().splitlines()
    assert "pip install 'fused-mlp[otel]'" in line
    assert "opentelemetry.exporter.otlp.proto.grpc.trace_exporter" in line


def test_a_server_without_models_says_so(otel: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is stopped before anything exports."""
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.safetensors").touch()
    ended = run_to_exit(model_repository=tmp_path)
    assert ended.returncode != 0
    assert "error: nothing to serve in" in ended.stderr.splitlines()[-1]
