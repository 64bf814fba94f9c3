# SPDX-License-Identifier: Apache-2.0
"""One serving process from start to exit: bind the ports, load the models, serve until a signal, drain, release.
The main thread runs the asyncio loop; models are loaded on another."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING

from fused_mlp.kernels.cores import usable_cores
from fused_mlp.kernels.failure import failure, listen
from fused_mlp.service import _engine
from fused_mlp.service.access.credentials import ServerCredentials
from fused_mlp.service.access.reloading import Reload, keep_reloading
from fused_mlp.service.canary.runner import LOOK_EVERY_S, Canaries
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.fronts.ports import check_ports
from fused_mlp.service.fronts.selection import Front, make_admin, make_front, max_message_bytes
from fused_mlp.service.handlers import SERVED_SERVICES, Control, admin_rpcs, control_rpcs
from fused_mlp.service.handlers.guard import Guard
from fused_mlp.service.handlers.health import check_answers
from fused_mlp.service.observe.banner import banner
from fused_mlp.service.observe.health import SERVER, Health, Serving
from fused_mlp.service.observe.http import MetricsServer, Pages
from fused_mlp.service.observe.http_request import Query
from fused_mlp.service.observe.load import LoadMeter, model_loads
from fused_mlp.service.observe.logs import set_up_logging
from fused_mlp.service.observe.model_metrics import ModelMetrics
from fused_mlp.service.observe.otel.environment import read_tracing
from fused_mlp.service.observe.status import status_json
from fused_mlp.service.reload.reloader import Reloader
from fused_mlp.service.settings.settings import Settings, SettingsError, join_address
from fused_mlp.service.stores.mirror import without_password
from fused_mlp.service.stores.places import Places

if TYPE_CHECKING:
    from fused_mlp.service.observe.metrics import Exposition
    from fused_mlp.service.observe.otel.exporter import Exporter

log = logging.getLogger(__name__)

# How long a thread of Python runs while another wants to. One answer to /readyz takes several turns: beside a scrape
# of 1,900 models 1 ms at the median, 6 ms with Python's own 5 ms.
SWITCH_INTERVAL_S = 0.0005
# At the end, after the last answer: a load may take minutes.
MOST_WAIT_FOR_LOADS_S = 2.0


def serve(settings: Settings) -> int:
    """Serve until a signal; returns the exit code. Raises SettingsError, ModelLoadError or KernelError when the
    service cannot start."""
    set_up_logging(settings.log_format, settings.log_level)
    for line in settings.warnings:
        log.warning("%s", line)
    # torch takes the size of its thread pool from here when it is imported, which only the unfused variant needs.
    os.environ["OMP_NUM_THREADS"] = str(settings.threads or usable_cores())
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    service = Service(settings)
    try:
        asyncio.run(_serve_until_signal(service))
    finally:
        service.close()
    return 0


async def _serve_until_signal(service: Service) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, number, service, stopping)
    await service.start()
    # Where nothing is read again SIGHUP ends the server, as it does by default: it comes when a terminal is closed.
    if service.credentials.reloads or service.reloader.on:
        loop.add_signal_handler(signal.SIGHUP, service.ask_to_reload)
    try:
        await service.load()
        _announce(service.banner(), service.settings)
        await stopping.wait()
    finally:
        ended = await service.stop()
    if not ended:
        os._exit(0)  # a load cannot be interrupted, and the next start finds the files whole


def _announce(text: str, settings: Settings) -> None:
    """For people on stdout; where machines read the output, as log lines like all the others."""
    if settings.log_format == "text":
        print(text, flush=True)
        return
    for line in text.splitlines():
        log.info("%s", " ".join(line.split()))


def _on_signal(number: int, service: Service, stopping: asyncio.Event) -> None:
    if service.loading:
        # Nothing was accepted yet, and a kernel in the middle of being built cannot be interrupted.
        log.info("stopped while loading")
        os._exit(128 + number)
    if stopping.is_set() and service.leave_now.is_set():
        log.warning("second signal: exit without waiting")
        os._exit(128 + number)
    if stopping.is_set():
        service.leave_now.set()
    stopping.set()


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
        self.grpc_port = self.rest_port = self.metrics_port = self.admin_port = 0
        self._health = Health()
        self.credentials = ServerCredentials(settings)
        self._guard = Guard(self.credentials.admin_callers)
        self._reload_asked = asyncio.Event()
        self.reloader = Reloader(settings, self.catalog, self._places)
        self.meter = LoadMeter(usable_cores(), lambda: model_loads(self.catalog, settings.queue_rows))
        self._health_is_old = False
        self.leave_now = asyncio.Event()  # no waiting for balancers, or no more
        if settings.drain_delay_s == 0:
            self.leave_now.set()
        self._canary_looks: asyncio.Task[None] | None = None
        self._spans = _span_exporter()

    async def start(self) -> None:
        """Bind all ports and answer on them: alive, not ready, models still loading."""
        loop = asyncio.get_running_loop()
        check_ports(self.settings)
        await asyncio.to_thread(self.reloader.prepare)
        self._fetches_first = bool(self._places.never_fetched)
        widest = 1 if self._fetches_first else self.catalog.scan()
        control = Control(self.settings, self.catalog, self._health, self.reloader, self.meter, self._guard)
        self.front: Front = make_front(
            self.settings, self.engine, self.router, control_rpcs(control), widest, want=self.catalog.want
        )
        self.catalog.on_demand.on_loaded = self.front.retry_waiting
        self.catalog.on_demand.call_later = lambda delay_s, callback: loop.call_soon_threadsafe(
            loop.call_later, delay_s, callback
        )
        self._model_metrics = ModelMetrics(
            self.engine, self.catalog, self.meter, self.settings.queue_rows, self.front.name
        )
        self._admin = make_admin(self.settings, self.engine, admin_rpcs(control))
        pages = Pages(
            render=self._render_metrics,
            not_ready=self._not_ready,
            failure=lambda: self._health.failure,
            status=lambda query: status_json(self.catalog, self.front.name, self._health.ready, query),
        )
        self._metrics = MetricsServer(
            self.settings.metrics_host,
            self.settings.metrics_port,
            pages,
            self.credentials.metrics_tls,
            self.credentials.metrics_callers,
        )
        self.metrics_port = self._metrics.port
        fronts = [front for front in (self.front, self._admin) if front]
        policies = self.catalog.policies
        policies.later = lambda call, name: asyncio.run_coroutine_threadsafe(
            self.reloader.run(call, name), loop
        )
        if policies.file.path is not None:
            self.credentials.reloads.append(Reload("policy", [policies.file.path], policies.read))
        self.credentials.watch([*(front.reload_tls for front in fronts), self._metrics.reload_tls])
        self._health.on_change(self._health_changed)
        self.reloader.on_problems = self._health_changed
        self._report_health()
        self._publish_health()
        if self._admin is not None:
            self.admin_port = await self._admin.start()
        self.grpc_port = await self.front.start()
        self.rest_port = self.front.rest_port
        self._reloading = loop.create_task(keep_reloading(self.credentials.reloads, self._reload_asked))
        self._measuring = loop.create_task(self.meter.run())
        self.catalog.on_change(lambda names: loop.call_soon_threadsafe(self._report_health, names))
        self._stop_listening = listen(lambda: loop.call_soon_threadsafe(lambda: self._health.fail(failure())))
        log.info(
            "listening on %s, %s models from %s",
            join_address(self.settings.host, self.grpc_port),
            "fetching" if self._fetches_first else "loading",
            without_password(self.settings.model_repository),
        )

    async def load(self) -> None:
        """Load all models, which may have to be fetched first; ready when it returns. Raises ModelLoadError when none
        can be served, KernelError."""
        if self._fetches_first:
            await self.reloader.fetch_first()
            widest = await asyncio.to_thread(self.catalog.scan)
            await self.front.allow_messages(max_message_bytes(self.settings, widest))
            self._report_health()
        gc.disable()  # nearly all that is made stays: with many models the collector would walk it over and over
        try:
            await asyncio.to_thread(self.catalog.load_all)
        finally:
            gc.enable()
        # What was loaded stays: the collector need not walk it again in the middle of a request.
        gc.collect()
        gc.freeze()
        if self._spans is not None:
            self._spans.start(self.settings, grpc_port=self.grpc_port, rest_port=self.rest_port)
        self.loading = False
        self._report_health()
        self._publish_health()  # before the banner says that it is ready
        self.reloader.start()
        self._canary_looks = asyncio.get_running_loop().create_task(self._look_at_canaries())

    async def _look_at_canaries(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                if self.canaries.wanted:
                    await asyncio.to_thread(self.canaries.look)
            except Exception:
                log.exception("the canaries could not be looked at")

    def ask_to_reload(self) -> None:
        """Certificates and models, of what may be read again."""
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
        """Turn unhealthy, answer what was accepted, then release. False: a load goes on, on its thread."""
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
        if self._canary_looks is not None:
            self._canary_looks.cancel()
        self.engine.on_dispute = None
        # A verdict would publish routes, and report to a loop that is about to end.
        await asyncio.to_thread(self.catalog.referee.stop)
        if self._admin is not None:
            await self._admin.stop(0)
        await self.reloader.stop()
        await self.front.stop(self.settings.drain_timeout_s)
        ended = await asyncio.to_thread(self.catalog.stop_loading, MOST_WAIT_FOR_LOADS_S)
        if self._spans is not None:
            await asyncio.to_thread(self._spans.stop)
        self._metrics.stop()
        ended &= await self.reloader.ended(MOST_WAIT_FOR_LOADS_S if ended else 0)
        log.info("stopped" if ended else "stopped, but a load has not ended")
        return ended

    async def _wait_for_balancers(self, delay_s: float) -> None:
        """Some have not heard that it leaves, and still open connections."""
        log.info("not ready any more: serving on for %g s; a second signal ends that", delay_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self.leave_now.wait()
        self.leave_now.set()

    def close(self) -> None:
        self.reloader.close()
        self.catalog.stop_loading()
        self.engine.stop()
        self.engine.on_dispute = None  # breaks the cycle between the engine and the catalog

    @cached_property
    def _exposition(self) -> Exposition:
        # The first scrape imports prometheus_client, a tenth of the start.
        from fused_mlp.service.observe import metrics  # noqa: PLC0415

        return metrics.Exposition(
            self._model_metrics,
            metrics.FrontCollector(self.front.stats),
            metrics.RepositoryCollector(self.catalog.repository.parts, self._places.failures),
            metrics.CredentialsCollector(self.credentials, self._guard.refused),
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
            {name: Serving.SERVING if well else Serving.NOT_SERVING for name, well in healthy.items()},
            removed=[name for name in changed if name not in known],
        )


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
