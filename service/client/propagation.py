# SPDX-License-Identifier: Apache-2.0
"""Client spans, and the header `traceparent` that makes the server's spans their children, where opentelemetry-api is
installed. Elsewhere calls go out as they are."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeAlias

from fused_mlp.service.client.errors import PredictError

Headers: TypeAlias = tuple[tuple[str, str], ...]


@contextmanager
def client_span(rpc: str, headers: Headers, target: str) -> Iterator[Headers]:
    """One span for the call and all its attempts; yields the headers to send. `rpc`: package.Service/Method. The span
    never becomes the current one: a generator may be suspended and resumed in other contexts."""
    tracer = _tracer()
    if tracer is None:
        yield headers
        return
    from opentelemetry import propagate, trace  # noqa: PLC0415

    attributes = {"rpc.system.name": "grpc", "rpc.method": rpc, **_server(target)}
    span = tracer.start_span(rpc, kind=trace.SpanKind.CLIENT, attributes=attributes)
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=trace.set_span_in_context(span))
    given = {name for name, _ in headers}
    code = "OK"
    try:
        yield (*headers, *((name, value) for name, value in carrier.items() if name not in given))
    except PredictError as error:
        code = error.code.name
        span.set_attribute("error.type", code)
        span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))
        raise
    except (asyncio.CancelledError, GeneratorExit):  # the caller gave up
        code = "CANCELLED"
        raise
    except BaseException as error:
        code = "UNKNOWN"
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))
        raise
    finally:
        span.set_attribute("rpc.response.status_code", code)
        span.end()


@cache
def _server(target: str) -> dict[str, str | int]:
    """Host and port of a gRPC target: host:port, [::1]:port, dns:///host:port, unix:path."""
    name = re.sub(r"^(dns|ipv4|ipv6):(//[^/]*/)?", "", target)
    host, _, port = name.rpartition(":")
    if target.startswith(("unix:", "unix-abstract:")) or not port.isdecimal():
        return {"server.address": target}
    return {"server.address": host.strip("[]"), "server.port": int(port)}


@cache
def _tracer() -> Any:
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.trace") is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415

    return trace.get_tracer("fused_mlp.client")
