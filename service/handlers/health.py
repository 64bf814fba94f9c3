# SPDX-License-Identifier: Apache-2.0
"""Serving status by name (the server, its gRPC services, each model), and grpc.health.v1, which reports it: Check,
Watch and List. The trailing metadata of Check names versions that answer unfused because their fused kernel cannot
serve, and versions that could not be loaded. The native front answers Check by itself, from check_answers()."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any

from fused_mlp.protos import health_pb2 as pb
from fused_mlp.service._engine import Action, quote_name
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.errors import ModelNotFound
from fused_mlp.service.fronts.rpc import Call, CheckAnswer, Rpc, rpcs_of
from fused_mlp.service.handlers.guard import Guard

SERVER = ""


class Serving(IntEnum):
    """As grpc.health.v1.HealthCheckResponse.ServingStatus."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    def __init__(self) -> None:
        self._statuses: dict[str, Serving] = {}
        self._changed = asyncio.Event()
        self._on_change: Callable[[], object] = lambda: None
        self.draining = False
        self._closed = False
        self.failure = ""  # why this process can compute no more

    def set(self, name: str, status: Serving) -> None:
        self.update({name: status})

    def update(self, statuses: Mapping[str, Serving], removed: Iterable[str] = ()) -> None:
        """Once shutdown has begun or the process has failed, no status becomes SERVING again."""
        ended = self.draining or self.failure
        for name, status in statuses.items():
            self._statuses[name] = Serving.NOT_SERVING if ended else status
        for name in removed:
            self._statuses.pop(name, None)
        self._notify()

    def drain(self) -> None:
        self.draining = True
        self._statuses = dict.fromkeys(self._statuses, Serving.NOT_SERVING)
        self._notify()

    def close(self) -> None:
        """Ends the watchers: they must not hold up the exit."""
        self._closed = True
        self._notify()

    def fail(self, reason: str) -> None:
        self.failure = reason
        self.update(dict.fromkeys(self._statuses, Serving.NOT_SERVING))

    def on_change(self, callback: Callable[[], object]) -> None:
        """The callback runs after each change: a front that answers health checks without Python updates its table."""
        self._on_change = callback

    def get(self, name: str) -> Serving | None:
        return self._statuses.get(name)

    def all(self) -> dict[str, Serving]:
        return dict(self._statuses)

    @property
    def ready(self) -> bool:
        return self._statuses.get(SERVER) is Serving.SERVING

    async def watch(self, name: str) -> AsyncIterator[Serving]:
        """The status now, and again whenever it changes."""
        last: Serving | None = None
        while True:
            changed, closed = self._changed, self._closed
            status = self._statuses.get(name, Serving.SERVICE_UNKNOWN)
            if status is not last:
                last = status
                yield status
            if closed:
                return
            await changed.wait()

    def _notify(self) -> None:
        # A fresh event for each change: a watcher holds the event from before its last look, so it misses no change.
        self._changed.set()
        self._changed = asyncio.Event()
        self._on_change()


SERVED_SERVICES = (
    "fused_mlp.v1.Inference",
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "xds.service.orca.v3.OpenRcaService",
)
OPEN_NAMES = (SERVER, *SERVED_SERVICES)  # every caller may ask: probes have no key
# "digits/1 shadow_mismatch": once for each version.
FALLBACK_KEY = "fused-mlp-fallback"
# "digits/4": once for each version that could not be loaded.
UNAVAILABLE_KEY = "fused-mlp-unavailable"
# "2": once for each repository of which something cannot be read or fetched, by its place in the setting.
REPOSITORY_KEY = "fused-mlp-repository-problem"
MAX_UNAVAILABLE = 10  # in the trailer of the whole server, which many clients read

Trailers = list[tuple[str, str]]


def check_answers(health: Health, catalog: Catalog) -> list[CheckAnswer]:
    """The answer of Check to each name: status and trailers."""
    trailers = _trailers(catalog)
    return [
        (name, int(status), trailers.get(name, []), name not in OPEN_NAMES)
        for name, status in health.all().items()
    ]


def _trailers(catalog: Catalog) -> dict[str, Trailers]:
    """By name; the server has those of all models."""
    found: dict[str, Trailers] = {SERVER: []}
    unavailable: Trailers = []
    for model in catalog.models():
        versions = [(v, v.fallback) for v in model.fallen_back if v.fallback]
        found[model.name] = [(FALLBACK_KEY, f"{v.model}/{v.version} {why.reason}") for v, why in versions]
        found[SERVER] += found[model.name]
        broken = [
            (UNAVAILABLE_KEY, f"{v.model}/{v.version}")
            for v in model.versions
            if v.state == "UNAVAILABLE" and not v.answers
        ]
        found[model.name] += broken
        unavailable += broken
    found[SERVER] += unavailable[:MAX_UNAVAILABLE]
    parts = enumerate(catalog.repository.parts, 1)
    found[SERVER] += [(REPOSITORY_KEY, str(number)) for number, part in parts if part.problems]
    return found


def rpcs(health: Health, catalog: Catalog, guard: Guard) -> list[Rpc]:
    async def check(request: Any, call: Call) -> Any:
        status = health.get(request.service)
        if status is None:
            raise ModelNotFound(quote_name(request.service))
        if guard.sees(call)("" if request.service in OPEN_NAMES else request.service):
            call.trailers.extend(_trailers(catalog).get(request.service, []))
        return pb.HealthCheckResponse(status=status.name)

    async def watch(request: Any, _: Call) -> AsyncIterator[Any]:
        async for status in health.watch(request.service):
            yield pb.HealthCheckResponse(status=status.name)

    async def list_all(_request: Any, call: Call) -> Any:
        sees = guard.sees(call)
        statuses = {
            name: pb.HealthCheckResponse(status=s.name)
            for name, s in health.all().items()
            if name in OPEN_NAMES or sees(name)
        }
        return pb.HealthListResponse(statuses=statuses)

    service = pb.DESCRIPTOR.services_by_name["Health"]
    listed = rpcs_of(service, {"List": list_all})  # every caller may: it holds what that caller may see
    asked = rpcs_of(service, {"Check": check, "Watch": watch})
    return [*listed, *(guard.protect(rpc, Action.describe, OPEN_NAMES) for rpc in asked)]
