"""One serving process from start to exit: engine, models, front, metrics; then signals, drain and release.
The main thread runs the asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal

import torch

from service import _engine
from service.banner import banner
from service.catalog import Catalog
from service.fronts import make_front
from service.handlers import Control
from service.handlers.control import SERVED_SERVICES
from service.health import SERVER, Health, Serving
from service.logs import set_up_logging
from service.metrics import EngineCollector, Exposition
from service.metrics_http import MetricsServer, Pages
from service.settings import Settings

log = logging.getLogger(__name__)


def serve(settings: Settings) -> int:
    """Serve until a signal; returns the exit code. Raises SettingsError, ModelLoadError or KernelError when the
    service cannot start."""
    set_up_logging(settings.log_format, settings.log_level)
    torch.set_num_threads(settings.kernel_threads)
    engine = _engine.Engine(workers=settings.engine_workers, on_kernel_error=_log_kernel_error)
    router = _engine.Router()
    try:
        catalog = Catalog(settings, engine, router)
        catalog.load_all()
        # What was loaded stays: the collector need not walk it again in the middle of a request.
        gc.collect()
        gc.freeze()
        return asyncio.run(_Server(settings, engine, router, catalog).run())
    finally:
        engine.stop()


class _Server:
    def __init__(
        self, settings: Settings, engine: _engine.Engine, router: _engine.Router, catalog: Catalog
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._router = router
        self._catalog = catalog

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number, stopping)
        health = Health()
        control = Control(self._settings, self._catalog, health)
        front = make_front(self._settings, self._engine, self._router, control)
        exposition = Exposition(EngineCollector(self._engine, self._catalog, front.name))
        pages = Pages(render=exposition.render, ready=lambda: health.ready)
        metrics = MetricsServer(self._settings.metrics_host, self._settings.metrics_port, pages)
        try:
            port = await front.start()
            self._report_health(health)
            self._catalog.on_change(lambda: loop.call_soon_threadsafe(self._report_health, health))
            print(banner(self._settings, self._catalog, front.name, port, metrics.port), flush=True)
            await stopping.wait()
            log.info("stopping: answering what was accepted, at most %g s", self._settings.drain_timeout_s)
            health.drain()
            self._engine.begin_drain()
        finally:
            await front.stop(self._settings.drain_timeout_s)
            metrics.stop()
        log.info("stopped")
        return 0

    def _report_health(self, health: Health) -> None:
        """A model is healthy when one of its versions can answer, the server when any model is."""
        models = {model.name: bool(model.ready) for model in self._catalog.models()}
        for name in set(health.all()) - models.keys() - {SERVER, *SERVED_SERVICES}:
            health.remove(name)
        for name, ready in models.items():
            health.set(name, Serving.SERVING if ready else Serving.NOT_SERVING)
        server = Serving.SERVING if any(models.values()) else Serving.NOT_SERVING
        for name in (SERVER, *SERVED_SERVICES):
            health.set(name, server)

    def _on_signal(self, number: int, stopping: asyncio.Event) -> None:
        if stopping.is_set():
            log.warning("second signal: exit without waiting")
            with contextlib.suppress(Exception):
                logging.shutdown()
            os._exit(128 + number)
        stopping.set()


def _log_kernel_error(lane: str, text: str) -> None:
    log.error("kernel of %s failed: %s", lane, text)
