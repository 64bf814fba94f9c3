# SPDX-License-Identifier: Apache-2.0
"""xds.service.orca.v3: streams the load of this server to clients and proxies that weigh servers by load. It is out of
band: answers to requests do not carry it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import lru_cache
from heapq import nlargest
from typing import Any

from fused_mlp.protos import orca_pb2 as pb
from fused_mlp.service.errors import Overloaded
from fused_mlp.service.fronts.rpc import Call, Rpc, rpcs_of
from fused_mlp.service.handlers.guard import Guard
from fused_mlp.service.observe.utilisation import Load, LoadMeter

MIN_INTERVAL_S = 1.0
MAX_STREAMS = 1000  # a client has one per connection; each costs about 0.1 ms of Python per report
MAX_MODELS = 20  # of which a report tells: those that compute the most


def rpcs(meter: LoadMeter, guard: Guard) -> list[Rpc]:
    async def stream(request: Any, call: Call) -> AsyncIterator[bytes]:
        if meter.watchers >= MAX_STREAMS:
            raise Overloaded(f"expected at most {MAX_STREAMS} streams of load reports: all are taken")
        interval = request.report_interval.seconds + request.report_interval.nanos / 1e9
        async for load in meter.watch(max(interval, MIN_INTERVAL_S)):
            yield report(load, guard.sees(call)(""))

    service = pb.DESCRIPTOR.services_by_name["OpenRcaService"]
    return [replace(rpc, encode=bytes) for rpc in rpcs_of(service, {"StreamCoreMetrics": stream})]


@lru_cache(maxsize=2)  # the same for all streams
def report(load: Load, with_models: bool = True) -> bytes:
    named = {"queue_fill": load.queue_fill}
    models = load.models.items() if with_models else ()
    busiest = nlargest(MAX_MODELS, models, key=lambda model: model[1][1])
    for name, (requests_per_s, computing) in busiest:
        named |= {f"rps.{name}": requests_per_s, f"compute.{name}": computing}
    message = pb.OrcaLoadReport(
        cpu_utilization=load.cpu,
        application_utilization=load.utilization,
        rps_fractional=load.requests_per_s,
        eps=load.errors_per_s,
        named_metrics=named,
    )
    return bytes(message.SerializeToString())
