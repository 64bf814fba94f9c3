# SPDX-License-Identifier: Apache-2.0
"""Traces end to end: a caller's traceparent, spans at a real OTLP receiver, exemplars in a real Prometheus."""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fused_mlp.service.client import AsyncClient, Client, PredictError, propagation
from tests.support.fronts import both_fronts
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.prometheus import Prometheus
from tests.support.puppet import POISON, PuppetService
from tests.support.rest import rest_port
from tests.support.server import Server

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
NOT_SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
X = np.zeros(64, np.float32)
PREDICT = "fused_mlp.v1.Inference/Predict"


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


@both_fronts
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_sampled_request_becomes_spans(
    receiver: OtlpReceiver, otel: pytest.MonkeyPatch, front: str, protocol: str
) -> None:
    otel.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    if protocol != "grpc":
        otel.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.http_endpoint)
    # Not a name of the service, though it begins like one.
    otel.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=shop")
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
        "rpc.system.name": "grpc",
        "rpc.method": PREDICT,
        "rpc.response.status_code": "OK",
        "server.address": "127.0.0.1",
        "server.port": int(server.target.rpartition(":")[2]),
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
    otel: pytest.MonkeyPatch,
    sampler: str,
    argument: str,
    exported: set[str],
) -> None:
    otel.setenv("OTEL_TRACES_SAMPLER", sampler)
    otel.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    requests = {"sampled": (1, SAMPLED), "not sampled": (2, NOT_SAMPLED), "none": (3, {})}
    names = {rows: name for name, (rows, _) in requests.items()}
    with Server() as server, Client(server.target) as client:
        for rows, metadata in requests.values():
            client.predict("digits", np.stack([X] * rows), metadata=metadata)
    # A server exports what is left before it ends.
    spans = receiver.wait_for(lambda spans: len(named(spans, PREDICT)) >= len(exported))
    assert {names[attributes(span)["fused_mlp.rows"]] for span in named(spans, PREDICT)} == exported


def test_a_refused_request_has_a_span_without_a_batch(
    receiver: OtlpReceiver, otel: pytest.MonkeyPatch
) -> None:
    with Server() as server, Client(server.target) as client:
        with pytest.raises(PredictError):
            client.predict("nothing", X, metadata=SAMPLED)
        [span] = receiver.wait_for(len)
    assert attributes(span)["rpc.response.status_code"] == "NOT_FOUND"
    assert "error.type" not in attributes(span)
    assert attributes(span)["fused_mlp.model"] == "nothing"
    assert span.status.code == Status.STATUS_CODE_UNSET  # the caller's mistake


@pytest.mark.parametrize("versions", ["", "/versions/{version}"])
def test_a_rest_request_has_the_attributes_of_http(
    receiver: OtlpReceiver, otel: pytest.MonkeyPatch, versions: str
) -> None:
    path = f"/v2/models/digits{versions.format(version=1)}/infer"
    body = {"inputs": [{"name": "input", "shape": [1, 64], "datatype": "FP32", "data": X.tolist()}]}
    with Server(rest_port=0) as server:
        port = rest_port(server)
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}?secret=1",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **SAMPLED},
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            assert response.status == 200
        route = f"/v2/models/{{model}}{versions}/infer"
        [span] = named(receiver.wait_for(lambda spans: len(spans) == 5), f"POST {route}")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert attributes(span) == {
        "http.request.method": "POST",
        "http.route": route,
        "http.response.status_code": 200,
        "url.path": path,
        "url.scheme": "http",
        "server.address": "127.0.0.1",
        "server.port": port,
        "fused_mlp.model": "digits",
        "fused_mlp.version": "1",
        "fused_mlp.variant": "fused",
        "fused_mlp.rows": 1,
    }


def test_several_traceparents_count_as_none(receiver: OtlpReceiver, otel: pytest.MonkeyPatch) -> None:
    """As W3C Trace Context has it. Over gRPC, grpcio itself sends only the last."""
    with Server(rest_port=0) as server:
        connection = http.client.HTTPConnection("127.0.0.1", rest_port(server), timeout=10)
        connection.putrequest("POST", "/v2/models/digits/infer")
        for trace in (TRACE, "ab" * 16, TRACE):
            connection.putheader("traceparent", f"00-{trace}-{PARENT}-01")
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        assert connection.getresponse().status == 400
        connection.close()
        [span] = receiver.wait_for(len)
    assert span.trace_id.hex() not in (TRACE, "ab" * 16)
    assert not span.parent_span_id


@both_fronts
def test_a_log_line_names_the_trace_that_began_here(
    receiver: OtlpReceiver, otel: pytest.MonkeyPatch, front: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No caller to name one: the server's own, else its span could not be found."""
    with PuppetService(front=front) as puppet, Client(puppet.target) as client:
        with pytest.raises(PredictError, match="INTERNAL"):
            client.predict("digits", np.full(64, POISON, np.float32))
        spans = receiver.wait_for(lambda spans: len(spans) == 5)  # with the batch that failed
    [span] = named(spans, PREDICT)
    told = {getattr(record, "trace_id", "") for record in caplog.records if "request" in record.message}
    assert span.trace_id.hex() in told
    assert attributes(span)["error.type"] == "INTERNAL"
    assert span.status.code == Status.STATUS_CODE_ERROR


@both_fronts
def test_a_request_that_expires_in_the_queue_has_no_batch(
    receiver: OtlpReceiver, otel: pytest.MonkeyPatch, front: str
) -> None:
    otel.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with PuppetService(front=front) as puppet, Client(puppet.target) as client:
        puppet.hold()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.predict, "digits", X)
            puppet.wait_entered()
            with pytest.raises(PredictError, match="DEADLINE_EXCEEDED"):
                client.predict("digits", X, timeout_s=0.05, metadata=SAMPLED)
            puppet.release()
            running.result()
        spans = receiver.wait_for(len)
    [span] = named(spans, PREDICT)
    # Its caller may hang up before the server looks at the clock.
    assert attributes(span)["rpc.response.status_code"] in ("DEADLINE_EXCEEDED", "CANCELLED")
    assert {span.name for span in spans} <= {PREDICT, "queue"}


def test_a_long_name_is_cut_between_characters(
    receiver: OtlpReceiver, otel: pytest.MonkeyPatch, front: str
) -> None:
    """Half a character is no text: it once ended the thread that exports."""
    with Server(front=front) as server, Client(server.target) as client:
        with pytest.raises(PredictError):
            client.predict("a" * 127 + "\u00e9" * 9, X)
        [span] = receiver.wait_for(len)
    assert str(attributes(span)["fused_mlp.model"]).startswith("a" * 127)


def test_servers_number_their_batches_apart(receiver: OtlpReceiver, otel: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with Server() as server, Client(server.target) as client:
            client.predict("digits", X)
    batches = named(receiver.wait_for(lambda spans: len(spans) == 10), "fused_mlp batch")
    # A number of the batch within its process, and two random ones of the process.
    halves = [(int.from_bytes(b.trace_id[:8]), int.from_bytes(b.trace_id[8:])) for b in batches]
    assert len({high ^ low for high, low in halves} | {0}) == 3


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


@pytest.fixture
def client_spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Of clients in this process, without a provider for all of it."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(propagation, "_tracer", lambda: provider.get_tracer("test"))
    return kept


def test_client_spans_are_the_parents_of_server_spans(
    receiver: OtlpReceiver, otel: pytest.MonkeyPatch, client_spans: InMemorySpanExporter
) -> None:
    with Server() as server, Client(server.target) as client:
        with propagation._tracer().start_as_current_span("work"):
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
    predicted, work, streamed, failed, given_up = client_spans.get_finished_spans()
    assert given_up.attributes["rpc.response.status_code"] == "CANCELLED"
    assert given_up.status.status_code is trace.StatusCode.UNSET
    assert predicted.parent.span_id == work.context.span_id
    served = [span for span in named(spans, PREDICT) if attributes(span)["rpc.response.status_code"] == "OK"]
    assert [int.from_bytes(span.parent_span_id) for span in served] == [predicted.context.span_id]
    assert {int.from_bytes(span.parent_span_id) for span in spans if span.name.endswith("PredictStream")} == {
        streamed.context.span_id
    }
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert failed.status.description == "NOT_FOUND: model 'nothing' is not served here"
    host, _, port = server.target.partition(":")
    assert dict(failed.attributes) == {
        "rpc.system.name": "grpc",
        "rpc.method": PREDICT,
        "rpc.response.status_code": "NOT_FOUND",
        "error.type": "NOT_FOUND",
        "server.address": host,
        "server.port": int(port),
    }


async def test_the_async_client_tells_how_each_call_ended(
    server: Server, client_spans: InMemorySpanExporter
) -> None:
    async with AsyncClient(server.target) as client:
        await client.predict("digits", X)
        with pytest.raises(PredictError):
            await client.predict("nothing", X)
        given_up = asyncio.create_task(client.predict("digits", X))
        await asyncio.sleep(0)  # it begins
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert len([item async for item in client.stream("digits", [X] * 3)]) == 3
        with pytest.raises(ZeroDivisionError):
            await anext(client.stream("digits", (X / (1 // 0) for _ in range(1))))
    told = [
        (span.attributes["rpc.response.status_code"], span.attributes.get("error.type"))
        for span in client_spans.get_finished_spans()
    ]
    assert told == [
        ("OK", None),
        ("NOT_FOUND", "NOT_FOUND"),
        ("CANCELLED", None),
        ("OK", None),
        ("UNKNOWN", "ZeroDivisionError"),
    ]


@pytest.mark.parametrize(
    ("target", "address", "port"),
    [
        ("localhost:8001", "localhost", 8001),
        ("[::1]:8001", "::1", 8001),
        ("dns:///models.example:8001", "models.example", 8001),
        ("ipv4:10.0.0.1:8001", "10.0.0.1", 8001),
        ("unix:/run/models.sock", "unix:/run/models.sock", None),
        ("models.example", "models.example", None),
    ],
)
def test_a_client_span_names_the_server(
    target: str, address: str, port: int | None, client_spans: InMemorySpanExporter
) -> None:
    with propagation.client_span(PREDICT, (), target):
        pass
    [span] = client_spans.get_finished_spans()
    assert (span.attributes["server.address"], span.attributes.get("server.port")) == (address, port)
