# SPDX-License-Identifier: Apache-2.0
"""A collector for tests: OTLP over gRPC and over HTTP, made from opentelemetry-proto. Keeps the spans that it gets."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as rpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PATIENCE_S = 20


class OtlpReceiver:
    """`hold()`: keep exporters waiting until `release()`."""

    def __init__(self, http_port: int = 0) -> None:
        self.headers: dict[str, str] = {}  # of the last message, names in lower case
        self._changed = threading.Condition()
        self._spans: list[Span] = []
        self._resources: list[dict[str, str]] = []
        self._open = threading.Event()
        self._open.set()
        self._grpc = grpc.server(ThreadPoolExecutor(2))
        rpc.add_TraceServiceServicer_to_server(_Service(self), self._grpc)
        self.grpc_endpoint = f"http://127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}"
        self._http = ThreadingHTTPServer(("127.0.0.1", http_port), _handler(self))
        self.http_endpoint = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever)

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def take(self, request: pb.ExportTraceServiceRequest) -> None:
        self._open.wait(PATIENCE_S)
        with self._changed:
            for resource in request.resource_spans:
                self._resources.append({a.key: a.value.string_value for a in resource.resource.attributes})
                for scope in resource.scope_spans:
                    self._spans.extend(scope.spans)
            self._changed.notify_all()

    def wait_for(self, enough: Callable[[list[Span]], bool]) -> list[Span]:
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self._spans), PATIENCE_S), [
                s.name for s in self._spans
            ]
            return list(self._spans)

    @property
    def resource(self) -> dict[str, str]:
        with self._changed:
            return self._resources[-1]

    def __enter__(self) -> Self:
        self._grpc.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self._grpc.stop(0).wait()


class _Service(rpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(  # noqa: N802 - the name of the RPC
        self, request: pb.ExportTraceServiceRequest, context: Any
    ) -> pb.ExportTraceServiceResponse:
        self._receiver.headers = {name.lower(): str(value) for name, value in context.invocation_metadata()}
        self._receiver.take(request)
        return pb.ExportTraceServiceResponse()


def _handler(receiver: OtlpReceiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces", self.path
            receiver.headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Encoding"] == "gzip":
                body = gzip.decompress(body)
            receiver.take(pb.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(pb.ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: object) -> None:
            pass

    return Handler
