# SPDX-License-Identifier: Apache-2.0
"""Traces end to end: a caller's traceparent, spans at a real OTLP receiver, exemplars in a real Prometheus."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from fused_mlp.service.client import Client, PredictError
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.prometheus import Prometheus
from tests.support.rest import rest_port
from tests.support.server import Server, run_to_exit

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
NOT_SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
X = np.zeros(64, np.float32)
PREDICT = "fused_mlp.v1.Inference/Predict"


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
def environment(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.grpc_endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    return monkeypatch


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


def attributes(span: Span) -> dict[str, object]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def openmetrics(server: Server) -> str:
    request = urllib.request.Request(
        f"{server.metrics_url}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.read().decode()


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_sampled_request_becomes_spans(
    receiver: OtlpReceiver, environment: pytest.MonkeyPatch, front: str, protocol: str
) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    if protocol != "grpc":
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.http_endpoint)
    # Not a name of the service, though it begins like one.
    environment.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=shop")
    with Server(front=front) as server, Client(server.target) as client:
        client.predict("digits", np.stack([X] * 3), variant="fused", metadata=SAMPLED)
        spans = receiver.wait_for(lambda spans: len(spans) == 5)
        assert server.metric("fused_mlp_otel_spans_total", result="exported") == 5
        text = openmetrics(server)
    assert receiver.resource["service.name"] == "fused-mlp"
    assert receiver.resource["service.namespace"] == "shop"

    [request], [queue], [batch], [compute] = (named(spans, n) for n in (PREDICT, "queue", "batch", "compute"))
    [whole_batch] = named(spans, "fused_mlp batch")
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    assert request.kind == Span.SPAN_KIND_SERVER
    assert attributes(request) == {
        "rpc.system": "grpc",
        "rpc.service": "fused_mlp.v1.Inference",
        "rpc.method": "Predict",
        "rpc.grpc.status_code": 0,
        "fused_mlp.model": "digits",
        "fused_mlp.version": "1",
        "fused_mlp.variant": "fused",
        "fused_mlp.rows": 3,
    }
    assert queue.parent_span_id == batch.parent_span_id == request.span_id
    assert compute.parent_span_id == batch.span_id
    assert {span.trace_id.hex() for span in (queue, batch, compute)} == {TRACE}
    assert [link.span_id for link in request.links] == [whole_batch.span_id]
    assert [link.span_id for link in whole_batch.links] == [request.span_id]
    assert attributes(whole_batch)["fused_mlp.rows"] == 3
    times = [
        request.start_time_unix_nano,
        queue.end_time_unix_nano,
        compute.start_time_unix_nano,
        compute.end_time_unix_nano,
        batch.end_time_unix_nano,
        request.end_time_unix_nano,
    ]
    assert times == sorted(times)
    assert queue.end_time_unix_nano == batch.start_time_unix_nano
    assert len({span.span_id for span in spans}) == 5
    # An exemplar leads to the server's own span.
    exemplar = f'# {{trace_id="{TRACE}",span_id="{request.span_id.hex()}"}}'
    series = [line.partition("_bucket")[0] for line in text.splitlines() if exemplar in line]
    assert series == [f"fused_mlp_{name}_duration_seconds" for name in ("request", "queue", "compute")]


@pytest.mark.parametrize(
    ("sampler", "argument", "exported"),
    [
        ("parentbased_always_on", "", {"sampled", "none"}),
        ("parentbased_always_off", "", {"sampled"}),
        ("always_on", "", {"sampled", "not sampled", "none"}),
        ("traceidratio", "0", set()),
    ],
)
def test_the_sampler_of_the_environment_decides(
    receiver: OtlpReceiver,
    environment: pytest.MonkeyPatch,
    sampler: str,
    argument: str,
    exported: set[str],
) -> None:
    environment.setenv("OTEL_TRACES_SAMPLER", sampler)
    environment.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    requests = {"sampled": (1, SAMPLED), "not sampled": (2, NOT_SAMPLED), "none": (3, {})}
    names = {rows: name for name, (rows, _) in requests.items()}
    with Server() as server, Client(server.target) as client:
        for rows, metadata in requests.values():
            client.predict("digits", np.stack([X] * rows), metadata=metadata)
    # A server exports what is left before it ends.
    spans = receiver.wait_for(lambda spans: len(named(spans, PREDICT)) >= len(exported))
    assert {names[attributes(span)["fused_mlp.rows"]] for span in named(spans, PREDICT)} == exported


def test_a_refused_request_has_a_span_without_a_batch(
    receiver: OtlpReceiver, environment: pytest.MonkeyPatch
) -> None:
    with Server() as server, Client(server.target) as client:
        with pytest.raises(PredictError):
            client.predict("nothing", X, metadata=SAMPLED)
        [span] = receiver.wait_for(len)
    assert attributes(span)["rpc.grpc.status_code"] == 5  # NOT_FOUND
    assert attributes(span)["fused_mlp.model"] == "nothing"
    assert span.status.code == Status.STATUS_CODE_UNSET  # the caller's mistake


def test_a_rest_request_has_the_attributes_of_http(
    receiver: OtlpReceiver, environment: pytest.MonkeyPatch
) -> None:
    with Server(rest_port=0) as server:
        body = {"inputs": [{"name": "input", "shape": [1, 64], "datatype": "FP32", "data": X.tolist()}]}
        request = urllib.request.Request(
            f"http://127.0.0.1:{rest_port(server)}/v2/models/digits/infer",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **SAMPLED},
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            assert response.status == 200
        [span] = named(receiver.wait_for(lambda spans: len(spans) == 5), "POST /v2/models/{model}/infer")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    told = attributes(span)
    assert told["http.route"] == "/v2/models/{model}/infer"
    assert told["http.response.status_code"] == 200


def test_a_slow_collector_delays_no_request(receiver: OtlpReceiver, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    environment.setenv("OTEL_TRACES_SAMPLER", "always_on")
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


def test_exemplars_reach_prometheus(tmp_path: Path) -> None:
    """Without any exporter: the caller's own trace id."""
    with Server() as server, Client(server.target) as client:
        client.predict("digits", X, metadata=SAMPLED)
        client.predict("digits", X, metadata=NOT_SAMPLED)
        target = server.metrics_url.removeprefix("http://")
        with Prometheus(tmp_path, target, tls=False, features=("exemplar-storage",)) as prometheus:
            for name in ("request", "queue", "compute"):
                series = prometheus.exemplars(f"fused_mlp_{name}_duration_seconds_bucket")
                labels = [exemplar["labels"] for each in series for exemplar in each["exemplars"]]
                assert labels == [{"trace_id": TRACE, "span_id": PARENT}]
        assert TRACE not in server.get("/metrics")[1]  # the older text format has no exemplars


def test_client_spans_are_the_parents_of_server_spans(
    receiver: OtlpReceiver, environment: pytest.MonkeyPatch
) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    environment.setattr("fused_mlp.service.client.propagation._tracer", lambda: provider.get_tracer("test"))
    with Server() as server, Client(server.target) as client:
        with provider.get_tracer("test").start_as_current_span("work"):
            client.predict("digits", X)
        assert [item.unwrap().model for item in client.stream("digits", [X] * 2)] == ["digits"] * 2
        with pytest.raises(PredictError):
            client.predict("nothing", X)
        spans = receiver.wait_for(
            lambda spans: len([s for s in spans if s.name.startswith("fused_mlp.v1")]) == 4
        )
        left = client.stream("digits", [X] * 2)
        next(left)
        left.close()
    predicted, work, streamed, failed, given_up = kept.get_finished_spans()
    assert given_up.attributes["rpc.grpc.status_code"] == 1  # CANCELLED
    assert given_up.status.status_code is trace.StatusCode.UNSET
    assert predicted.parent.span_id == work.context.span_id
    served = [span for span in named(spans, PREDICT) if attributes(span)["rpc.grpc.status_code"] == 0]
    assert [int.from_bytes(span.parent_span_id) for span in served] == [predicted.context.span_id]
    assert {int.from_bytes(span.parent_span_id) for span in spans if span.name.endswith("PredictStream")} == {
        streamed.context.span_id
    }
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert failed.attributes["rpc.grpc.status_code"] == 5


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector", "expected a URL such as http://localhost:4317"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "expected grpc or http/protobuf, got 'http/json'"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "expected one of always_on, always_off"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1", "expected a whole number of at least 1, got '-1'"),
    ],
)
def test_a_variable_that_makes_no_sense_is_refused_in_one_line(
    environment: pytest.MonkeyPatch, variable: str, value: str, text: str
) -> None:
    environment.setenv(variable, value)
    ended = run_to_exit()
    assert ended.returncode != 0
    [line] = ended.stderr.strip().splitlines()
    assert variable in line
    assert text in line
