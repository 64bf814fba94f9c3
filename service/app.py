"""One serving process from start to exit: engine, models, front, metrics; then signals, drain and release.
The main thread runs the asyncio loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys

import torch

from fused_mlp.kernels.cores import usable_cores
from fused_mlp.service import _engine
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.fronts.selection import make_admin, make_front
from fused_mlp.service.handlers import SERVED_SERVICES, Control
from fused_mlp.service.observe.banner import banner
from fused_mlp.service.observe.health import SERVER, Health, Serving
from fused_mlp.service.observe.http import MetricsServer, Pages
from fused_mlp.service.observe.logs import set_up_logging
from fused_mlp.service.observe.metrics import EngineCollector, Exposition, FrontCollector
from fused_mlp.service.observe.status import status_json
from fused_mlp.service.settings.settings import Settings

log = logging.getLogger(__name__)


def serve(settings: Settings) -> int:
    """Serve until a signal; returns the exit code. Raises SettingsError, ModelLoadError or KernelError when the
    service cannot start."""
    set_up_logging(settings.log_format, settings.log_level)
    # As process 1 of a container there is no default action: without this a SIGTERM while loading is lost.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    for line in settings.warnings:
        log.warning("%s", line)
    torch.set_num_threads(settings.threads or usable_cores())
    service = Service(settings)
    # What was loaded stays: the collector need not walk it again in the middle of a request.
    gc.collect()
    gc.freeze()
    try:
        asyncio.run(_serve_until_signal(service))
    finally:
        service.close()
    return 0


async def _serve_until_signal(service: Service) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, number, stopping)
    await service.start()
    _announce(banner(service), service.settings)
    await stopping.wait()
    await service.stop()


def _announce(text: str, settings: Settings) -> None:
    """For people on stdout; where machines read the output, as log lines like all the others."""
    if settings.log_format == "text":
        print(text, flush=True)
        return
    for line in text.splitlines():
        log.info("%s", " ".join(line.split()))


def _on_signal(number: int, stopping: asyncio.Event) -> None:
    if stopping.is_set():
        log.warning("second signal: exit without waiting")
        os._exit(128 + number)
    stopping.set()


class Service:
    """All parts of one process. Constructing loads the models; start() and stop() run on one asyncio loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine = _engine.Engine(workers=settings.engine_workers)
        self.engine.on_kernel_error = _log_kernel_error
        self.router = _engine.Router()
        self.catalog = Catalog(settings, self.engine, self.router)
        self.engine.on_mismatch = self.catalog.report_mismatch
        self.grpc_port = self.metrics_port = self.admin_port = 0
        try:
            self.catalog.load_all()
        except BaseException:
            self.close()
            raise

    async def start(self) -> None:
        """Listen on both ports; ready when it returns."""
        loop = asyncio.get_running_loop()
        self._health = Health()
        control = Control(self.settings, self.catalog, self._health)
        self.front = make_front(self.settings, self.engine, self.router, control)
        self._admin = make_admin(self.settings, self.engine, control)
        exposition = Exposition(
            EngineCollector(self.engine, self.catalog, self.front.name), FrontCollector(self.front.stats)
        )
        pages = Pages(
            render=exposition.render,
            ready=lambda: self._health.ready,
            status=lambda: status_json(self.catalog, self.front.name, self._health.ready),
        )
        self._metrics = MetricsServer(self.settings.metrics_host, self.settings.metrics_port, pages)
        self.metrics_port = self._metrics.port
        if self._admin is not None:
            self.admin_port = await self._admin.start()
        self.grpc_port = await self.front.start()
        self._report_health()
        self.catalog.on_change(lambda: loop.call_soon_threadsafe(self._report_health))

    async def stop(self) -> None:
        """Turn unhealthy, answer what was accepted, then let go."""
        log.info("stopping: answering what was accepted, at most %g s", self.settings.drain_timeout_s)
        self._health.drain()
        self.engine.begin_drain()
        self.engine.on_mismatch = (
            None  # what it would change is about to go, and so is the loop it would tell
        )
        if self._admin is not None:
            await self._admin.stop(0)
        await self.front.stop(self.settings.drain_timeout_s)
        self._metrics.stop()
        log.info("stopped")

    def close(self) -> None:
        self.engine.stop()
        self.engine.on_mismatch = None  # or the engine and the catalog would keep each other alive

    def _report_health(self) -> None:
        """A model is healthy when one of its versions can answer, the server when any model is."""
        models = {model.name: bool(model.ready) for model in self.catalog.models()}
        services = (SERVER, *SERVED_SERVICES)
        for name in self._health.all().keys() - models.keys() - set(services):
            self._health.remove(name)
        for name, ready in models.items():
            self._health.set(name, Serving.SERVING if ready else Serving.NOT_SERVING)
        for name in services:
            self._health.set(name, Serving.SERVING if any(models.values()) else Serving.NOT_SERVING)


def _log_kernel_error(lane: str, text: str) -> None:
    log.error("kernel of %s failed: %s", lane, text)
