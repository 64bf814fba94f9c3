# SPDX-License-Identifier: Apache-2.0
"""Client spans, and the header `traceparent` that makes the server's spans their children, where opentelemetry-api is
installed. Elsewhere calls go out as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeAlias

from fused_mlp.service.client.errors import PredictError

Headers: TypeAlias = tuple[tuple[str, str], ...]
_CANCELLED, _UNKNOWN = 1, 2  # codes of gRPC


@contextmanager
def client_span(rpc: str, headers: Headers) -> Iterator[Headers]:
    """One span for the call with all its attempts; yields what to send. `rpc`: package.Service/Method. The span never
    becomes the current one: a generator may be left and entered again in other contexts."""
    tracer = _tracer()
    if tracer is None:
        yield headers
        return
    from opentelemetry import propagate, trace  # noqa: PLC0415

    service, _, method = rpc.partition("/")
    attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
    span = tracer.start_span(rpc, kind=trace.SpanKind.CLIENT, attributes=attributes)
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=trace.set_span_in_context(span))
    given = {name for name, _ in headers}
    code = 0
    try:
        yield (*headers, *((name, value) for name, value in carrier.items() if name not in given))
    except PredictError as error:
        code = error.code.value[0]
        span.set_status(trace.Status(trace.StatusCode.ERROR, error.code.name))
        raise
    except (asyncio.CancelledError, GeneratorExit):  # the caller gave up
        code = _CANCELLED
        raise
    except BaseException as error:
        code = _UNKNOWN
        span.record_exception(error)
        span.set_status(trace.Status(trace.StatusCode.ERROR))
        raise
    finally:
        span.set_attribute("rpc.grpc.status_code", code)
        span.end()


@cache
def _tracer() -> Any:
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.trace") is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415

    return trace.get_tracer("fused_mlp.client")
