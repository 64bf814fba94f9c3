"""A client with tracing: its span, the call's and those of the server are one trace."""

import sys

import numpy as np
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from fused_mlp import Client

provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))  # to OTEL_EXPORTER_OTLP_ENDPOINT
trace.set_tracer_provider(provider)

with Client(sys.argv[1]) as client, trace.get_tracer("shop").start_as_current_span("checkout") as span:
    answer = client.predict(
        "digits", np.zeros(64, np.float32)
    )  # nothing to do here: the client sees the span
    print(f"trace {span.get_span_context().trace_id:032x}, digit {answer.output.argmax()}")
provider.shutdown()  # sends what is left
