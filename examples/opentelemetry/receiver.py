"""A small collector: takes spans by OTLP over HTTP and prints each trace as a tree, again when more of it arrives.
In production use the OpenTelemetry Collector, Jaeger or Tempo."""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

spans_of: dict[bytes, list[tuple[str, object]]] = {}  # trace id -> (service, span)


def show(trace: bytes, parent: bytes = b"", depth: int = 1) -> None:
    for service, span in sorted(spans_of[trace], key=lambda each: each[1].start_time_unix_nano):
        if span.parent_span_id == parent:
            taken_us = (span.end_time_unix_nano - span.start_time_unix_nano) / 1000
            print(f"{'  ' * depth}{span.name} [{service}] {taken_us:.0f} us")
            show(trace, span.span_id, depth + 1)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        seen = set()
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = [a.value.string_value for a in resource.resource.attributes if a.key == "service.name"]
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                spans_of.setdefault(span.trace_id, []).append((names[0], span))
                seen.add(span.trace_id)
        for trace in seen:
            print(f"trace {trace.hex()}")
            show(trace)
        sys.stdout.flush()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(ExportTraceServiceResponse().SerializeToString())

    def log_message(self, *_: object) -> None:
        pass


HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
