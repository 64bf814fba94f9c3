# SPDX-License-Identifier: Apache-2.0
"""The thread that exports: it goes on whatever a request made it say, and ends before it began."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from fused_mlp.service import _engine
from fused_mlp.service.observe.otel.environment import Tracing
from fused_mlp.service.observe.otel.exporter import Exporter
from fused_mlp.service.observe.otel.protocols import Protocols
from fused_mlp.service.observe.otel.spans import SpanMaker
from fused_mlp.service.settings.environment import load_settings
from tests.support.otlp_receiver import OtlpReceiver


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.http_endpoint)
        yield receiver


def finish_request(rpc: str = "a.B/C") -> None:
    span = _engine.sample_request(_engine.TraceContext(), rpc, time.monotonic_ns())
    assert span is not None
    span.finish(0, "", "", time.monotonic_ns())


def test_an_exporter_that_never_started_stops_at_once() -> None:
    """As when a server is told to end while it loads."""
    Exporter(Tracing("http://localhost:1", "http/protobuf"), "1").stop()


def test_requests_that_are_exported_together_are_told_each_by_itself(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    describe = Protocols.describe

    def describe_all_but_one(protocols: Protocols, request: _engine.RequestSpan) -> Any:
        if request.rpc == "broken":
            raise ValueError("no text")
        return describe(protocols, request)

    monkeypatch.setattr(Protocols, "describe", describe_all_but_one)
    exporter = Exporter(Tracing(receiver.http_endpoint, "http/protobuf", delay_s=0.5), "1")
    exporter.start(load_settings(), grpc_port=1, rest_port=0)
    try:
        for rpc in ("a.B/C", "broken", "a.B/D"):
            finish_request(rpc)
    finally:
        exporter.stop()
    assert {span.name for span in receiver.wait_for(len)} == {"a.B/C", "a.B/D"}
    assert "a request's spans could not be made" in caplog.text


def test_a_request_that_cannot_be_told_costs_only_its_own_spans(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spans = SpanMaker.spans
    broken = iter([True])

    def break_once(*arguments: Any) -> Any:
        if next(broken, False):
            raise ValueError("no text")
        return spans(*arguments)

    monkeypatch.setattr(SpanMaker, "spans", break_once)
    exporter = Exporter(Tracing(receiver.http_endpoint, "http/protobuf", delay_s=0.01), "1")
    exporter.start(load_settings(), grpc_port=1, rest_port=0)
    try:
        finish_request()
        while "the spans of some requests were not exported" not in caplog.text:
            time.sleep(0.001)  # another thread logs it
        finish_request()
        assert len(receiver.wait_for(len)) == 1
    finally:
        exporter.stop()
