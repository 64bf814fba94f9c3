# SPDX-License-Identifier: Apache-2.0
"""All parts of one server: binds the ports, loads the models, serves, drains, releases. process.py runs it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from fused_mlp.kernels.cores import usable_cores
from fused_mlp.kernels.failure import failure, listen
from fused_mlp.models.repository.repository import MAX_SILENCE_S
from fused_mlp.service import _engine
from fused_mlp.service.access import audit
from fused_mlp.service.access.credentials import ServerCredentials
from fused_mlp.service.access.hosts import allowed_hosts
from fused_mlp.service.access.reloading import Reload, keep_reloading
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.fronts.ports import Ports, bind_ports, port_of
from fused_mlp.service.fronts.selection import Front, make_admin, make_front, max_message_bytes
from fused_mlp.service.handlers import SERVED_SERVICES, Control, admin_rpcs, control_rpcs
from fused_mlp.service.handlers.guard import Guard
from fused_mlp.service.handlers.health import SERVER, Health, Serving, check_answers
from fused_mlp.service.memory import LOOK_EVERY_S as MEMORY_EVERY_S
from fused_mlp.service.memory import Trimmer
from fused_mlp.service.observe.banner import banner
from fused_mlp.service.observe.http import MetricsServer, Pages
from fused_mlp.service.observe.http_request import Query
from fused_mlp.service.observe.losses import LOOK_EVERY_S as LOSSES_EVERY_S
from fused_mlp.service.observe.losses import Losses
from fused_mlp.service.observe.otel.environment import read_tracing
from fused_mlp.service.observe.scrape.model_metrics import ModelMetrics
from fused_mlp.service.observe.status import status_json
from fused_mlp.service.observe.utilisation import LoadMeter, model_loads
from fused_mlp.service.policy.rollout.canary import LOOK_EVERY_S as CANARIES_EVERY_S
from fused_mlp.service.policy.rollout.canary import Canaries
from fused_mlp.service.reload.reloader import Reloader
from fused_mlp.service.settings.settings import Settings, SettingsError, join_address
from fused_mlp.service.stores.mirror import without_password
from fused_mlp.service.stores.places import Places

if TYPE_CHECKING:
    from fused_mlp.service.observe.otel.exporter import Exporter
    from fused_mlp.service.observe.scrape.metrics import Exposition

log = logging.getLogger(__name__)

# How long the exit waits for loads that have begun, which may take minutes.
MAX_WAIT_FOR_LOADS_S = 2.0


async def _keep_looking(name: str, look: Callable[[], None], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        try:
            await asyncio.to_thread(look)
        except Exception:
            log.exception("%s: the check failed; the next one follows", name)


class Service:
    """All parts of one process. start() binds the ports, load() makes it ready, stop() drains; all three run on one
    asyncio loop."""

    def __init__(self, settings: Settings, workers: int | None = None) -> None:
        self.settings = settings
        _engine.use_cores(usable_cores())
        self.engine = _engine.Engine(workers=workers or settings.engine_workers)
        self.engine.on_kernel_error = _log_kernel_error
        self.router = _engine.Router()
        self._places = Places(settings)
        self.catalog = Catalog(settings, self.engine, self.router, self._places.repository)
        self.engine.on_dispute = self.catalog.referee.report
        self.canaries = Canaries(self.catalog)
        self.loading = True
        self._ports: Ports | None = None
        self.grpc_port = self.rest_port = self.metrics_port = self.admin_port = 0
        self._health = Health()
        self.credentials = ServerCredentials(settings)
        self._audit_file = _open_audit_file(settings.audit_log)
        self._guard = Guard(self.credentials.access)
        self._reload_asked = asyncio.Event()
        self.reloader = Reloader(settings, self.catalog, self._places)
        self.meter = LoadMeter(usable_cores(), lambda: model_loads(self.catalog, settings.queue_rows))
        self._health_is_old = False
        self.leave_now = asyncio.Event()  # set: do not wait for load balancers
        if settings.drain_delay_s == 0:
            self.leave_now.set()
        self._looks: list[asyncio.Task[None]] = []
        self._spans = _span_exporter()

    async def start(self) -> None:
        """Binds all ports. Those of metrics and administration answer from now on; the others refuse connections until
        models are loaded, so that clients try another server at once."""
        loop = asyncio.get_running_loop()
        ports = self._ports = bind_ports(self.settings)
        self.grpc_port, self.metrics_port = port_of(ports.grpc), port_of(ports.metrics)
        self.admin_port = port_of(ports.admin)
        await asyncio.to_thread(self.reloader.prepare)
        self._fetches_first = bool(self._places.never_fetched)
        widest = 1 if self._fetches_first else await self._scan()
        control = Control(self.settings, self.catalog, self._health, self.reloader, self.meter, self._guard)
        self.front: Front = make_front(
            self.settings,
            ports,
            control_rpcs(control),
            widest,
            engine=self.engine,
            router=self.router,
            want=self.catalog.want,
            access=self.credentials.access,
        )
        self.catalog.on_demand.on_loaded = self.front.retry_waiting
        self.catalog.on_demand.call_later = lambda delay_s, callback: loop.call_soon_threadsafe(
            loop.call_later, delay_s, callback
        )
        self._model_metrics = ModelMetrics(
            self.engine, self.catalog, self.meter, self.settings.queue_rows, self.front.name
        )
        self._admin = make_admin(self.settings, ports.admin, self.engine, admin_rpcs(control))
        pages = Pages(
            render=self._render_metrics,
            not_ready=self._not_ready,
            failure=lambda: self._health.failure,
            status=lambda query: status_json(self.catalog, self.front.name, self._health.ready, query),
        )
        self._metrics = MetricsServer(
            ports.metrics,
            pages,
            self.credentials.metrics_tls,
            may_read=self.credentials.access.may_read_metrics,
            allows_host=allowed_hosts(
                self.settings,
                self.settings.metrics_tls or self.credentials.access.asks(_engine.Action.metrics),
            ).allows,
        )
        fronts = [front for front in (self.front, self._admin) if front]
        policies = self.catalog.policies
        self.catalog.building.later = lambda call, name: asyncio.run_coroutine_threadsafe(
            self.reloader.run(call, name), loop
        )
        if policies.file is not None:
            self.credentials.reloads.append(Reload("policy", [policies.file.path], policies.read))
        self.credentials.watch([*(front.reload_tls for front in fronts), self._metrics.reload_tls])
        self._health.on_change(self._health_changed)
        self.reloader.on_problems = self._health_changed
        self._report_health()
        self._publish_health()
        if self._admin is not None:
            await self._admin.start()
            await self._admin.listen()
        await self.front.start()
        self.rest_port = self.front.rest_port
        self._reloading = loop.create_task(keep_reloading(self.credentials.reloads, self._reload_asked))
        self._measuring = loop.create_task(self.meter.run())
        self.catalog.on_change(lambda names: loop.call_soon_threadsafe(self._report_health, names))
        self._stop_listening = listen(lambda: loop.call_soon_threadsafe(lambda: self._health.fail(failure())))
        log.info(
            "%s models from %s, then listening on %s",
            "fetching" if self._fetches_first else "loading",
            without_password(self.settings.model_repository),
            join_address(self.settings.host, self.grpc_port),
        )

    async def load(self) -> None:
        """Load all models, which may have to be fetched first; ready when it returns. Raises ModelLoadError when none
        can be served, KernelError."""
        if self._fetches_first:
            await self.reloader.fetch_first()
            widest = await self._scan()
            await self.front.allow_messages(max_message_bytes(self.settings, widest))
            self._report_health()
        gc.disable()  # nearly all objects made here stay: the collector would walk them again and again
        try:
            await asyncio.to_thread(self.catalog.load_all)
        finally:
            gc.enable()
        # Loaded models stay: the collector need not walk them during a request.
        gc.collect()
        gc.freeze()
        if self._spans is not None:
            self._spans.start(self.settings, grpc_port=self.grpc_port, rest_port=self.rest_port)
        await self.front.listen()
        self.loading = False
        audit.record("start", arguments=f"fused-mlp {version('fused-mlp')}, process {os.getpid()}")
        self._report_health()
        self._publish_health()  # before the banner says that it is ready
        self.reloader.start()
        losses, trimmer = Losses(self.catalog), Trimmer(lambda: self.meter.load.utilization)
        loop = asyncio.get_running_loop()
        self._looks = [
            loop.create_task(_keep_looking("canaries", self.canaries.look, CANARIES_EVERY_S)),
            loop.create_task(_keep_looking("losses", losses.look, LOSSES_EVERY_S)),
            loop.create_task(_keep_looking("memory", trimmer.look, MEMORY_EVERY_S)),
        ]

    async def _scan(self) -> int:
        """On a thread: a signal ends the wait for a share that does not answer."""
        scan = asyncio.ensure_future(asyncio.to_thread(self.catalog.scan))
        if not (await asyncio.wait([scan], timeout=MAX_SILENCE_S))[0]:
            shown = without_password(self.settings.model_repository)
            log.warning("%s has not answered for %g s: the start waits for it", shown, MAX_SILENCE_S)
        return await scan

    def ask_to_reload(self) -> None:
        """Rereads certificates, lists of callers, policies and models, if the settings allow it."""
        self._reload_asked.set()
        self.reloader.ask()

    def banner(self) -> str:
        return banner(
            self.settings,
            self.catalog.models(),
            self.front.name,
            grpc_port=self.grpc_port,
            rest_port=self.rest_port,
            metrics_port=self.metrics_port,
            admin_port=self.admin_port,
        )

    async def stop(self) -> bool:
        """Turns unhealthy, answers accepted requests, then releases everything. False: a load still runs on its
        thread."""
        self._stop_listening()
        self._health.drain()
        self._publish_health()
        if not self.leave_now.is_set():
            await self._wait_for_balancers(self.settings.drain_delay_s)
        log.info("stopping: answering what was accepted, at most %g s", self.settings.drain_timeout_s)
        self._health.close()
        self._reloading.cancel()
        self._measuring.cancel()
        self.meter.stop()
        for task in self._looks:
            task.cancel()
        self.engine.on_dispute = None
        # A verdict would publish routes, and report to a loop that is about to end.
        await asyncio.to_thread(self.catalog.referee.stop)
        if self._admin is not None:
            await self._admin.stop(0)
        await self.reloader.stop()
        await self.front.stop(self.settings.drain_timeout_s)
        ended = await asyncio.to_thread(self.catalog.stop_loading, MAX_WAIT_FOR_LOADS_S)
        if self._spans is not None:
            await asyncio.to_thread(self._spans.stop)
        self._metrics.stop()
        ended &= await self.reloader.ended(MAX_WAIT_FOR_LOADS_S if ended else 0)
        audit.record("stop", arguments=f"process {os.getpid()}")
        log.info("stopped" if ended else "stopped, but a load has not ended")
        return ended

    async def _wait_for_balancers(self, delay_s: float) -> None:
        """Serves on until load balancers have noticed that this server is about to stop."""
        log.info("draining: still serving for %g s; signal again to exit now", delay_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self.leave_now.wait()
        self.leave_now.set()

    def close(self) -> None:
        self.reloader.close()
        self.catalog.stop_loading()
        if self._ports is not None:
            self._ports.close()
        self.engine.stop()
        self.engine.on_dispute = None  # breaks the cycle between the engine and the catalog
        if self._audit_file is not None:
            self._audit_file.close()

    @cached_property
    def _exposition(self) -> Exposition:
        # The first scrape imports prometheus_client, a tenth of the start.
        from fused_mlp.service.observe.scrape import metrics  # noqa: PLC0415

        return metrics.Exposition(
            self._model_metrics,
            metrics.FrontCollector(self.front.stats),
            metrics.RepositoryCollector(self.catalog.repository.parts, self._places.failures),
            metrics.LogCollector(),
            metrics.CredentialsCollector(self.credentials, self._guard.refused, self._audit_file),
            *([metrics.SpanCollector(self._spans)] if self._spans is not None else []),
        )

    def _render_metrics(self, accept: str, query: Query) -> tuple[list[bytes], str]:
        return self._exposition.render(accept, query)

    def _not_ready(self) -> str:
        """Why this server is not ready; empty when it is."""
        if self._health.ready:
            return ""
        if self._health.failure:
            return self._health.failure
        if self._health.draining:
            return "shutting down"
        if self.loading:
            return self._places.fetching or "loading models"
        return "no model can be served"

    def _health_changed(self) -> None:
        """Many changes at once are published once."""
        if not self._health_is_old:
            self._health_is_old = True
            asyncio.get_running_loop().call_soon(self._publish_health)

    def _publish_health(self) -> None:
        self._health_is_old = False
        self.front.publish_health(check_answers(self._health, self.catalog))

    def _report_health(self, names: Collection[str] | None = None) -> None:
        """A model is healthy when one of its versions can answer, the server when any model is. `names`: of the models
        that changed; None: all."""
        known = {model.name: bool(model.answering) for model in self.catalog.models()}
        changed = known.keys() if names is None else names
        healthy = {name: known[name] for name in changed if name in known}
        healthy |= dict.fromkeys((SERVER, *SERVED_SERVICES), any(known.values()))
        self._health.update(
            {name: Serving.SERVING if answers else Serving.NOT_SERVING for name, answers in healthy.items()},
            removed=[name for name in changed if name not in known],
        )


def _open_audit_file(path: Path | None) -> audit.AuditFile | None:
    """Raises SettingsError."""
    try:
        return audit.AuditFile(path) if path is not None else None
    except OSError as error:
        raise SettingsError(f"FUSED_MLP_AUDIT_LOG={path}: cannot be written: {error.strerror}") from None


def _span_exporter() -> Exporter | None:
    """Where the environment names a collector. Raises SettingsError."""
    tracing = read_tracing()
    if tracing is None:
        return None
    try:
        from fused_mlp.service.observe.otel.exporter import Exporter  # noqa: PLC0415

        return Exporter(tracing, version("fused-mlp"))
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"exporting spans needs {error.name}: pip install 'fused-mlp[otel]', or set OTEL_SDK_DISABLED=true"
        ) from None


def _log_kernel_error(lane: str, text: str) -> None:
    log.error("kernel of %s failed", lane, extra={"traceback": text})
