# SPDX-License-Identifier: Apache-2.0
"""xds.service.orca.v3: the load of this server as a stream, out of band, for clients and proxies that weigh servers by
it. Requests carry nothing of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import lru_cache
from heapq import nlargest
from typing import Any

from fused_mlp.protos import orca_pb2 as pb
from fused_mlp.service.errors import Overloaded
from fused_mlp.service.fronts.rpc import Call, Rpc, rpcs_of
from fused_mlp.service.observe.load import Load, LoadMeter

LEAST_INTERVAL_S = 1.0
MOST_STREAMS = 1000  # a client has one per connection; each costs about 0.1 ms of Python per report
MOST_MODELS = 20  # of which a report tells: those that compute the most


def rpcs(meter: LoadMeter) -> list[Rpc]:
    async def stream(request: Any, _: Call) -> AsyncIterator[bytes]:
        if meter.watchers >= MOST_STREAMS:
            raise Overloaded(f"expected at most {MOST_STREAMS} streams of load reports: all are taken")
        interval = request.report_interval.seconds + request.report_interval.nanos / 1e9
        async for load in meter.watch(max(interval, LEAST_INTERVAL_S)):
            yield report(load)

    service = pb.DESCRIPTOR.services_by_name["OpenRcaService"]
    return [replace(rpc, encode=bytes) for rpc in rpcs_of(service, {"StreamCoreMetrics": stream})]


@lru_cache(maxsize=1)  # the same for all streams
def report(load: Load) -> bytes:
    named = {"queue_fill": load.queue_fill}
    busiest = nlargest(MOST_MODELS, load.models.items(), key=lambda model: model[1][1])
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
