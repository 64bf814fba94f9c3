# SPDX-License-Identifier: Apache-2.0
"""The serving process from start to exit: sets up the process, serves until a signal, and leaves. The main thread runs
the asyncio loop; models are loaded on another."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from typing import NoReturn

from fused_mlp.kernels.cores import usable_cores
from fused_mlp.service import _engine, descriptors
from fused_mlp.service.app import MAX_WAIT_FOR_LOADS_S, Service
from fused_mlp.service.observe.logs import set_up_logging
from fused_mlp.service.settings.settings import Settings

log = logging.getLogger(__name__)

# How long a thread of Python runs while another wants to. One answer to /readyz takes several turns: beside a scrape
# of 1,900 models 1 ms at the median, 6 ms with Python's own 5 ms.
SWITCH_INTERVAL_S = 0.0005


def serve(settings: Settings) -> int:
    """Serve until a signal; returns the exit code. Raises SettingsError, ModelLoadError or KernelError when the
    service cannot start."""
    set_up_logging(settings.log_format, settings.log_level)
    for line in settings.warnings:
        log.warning("%s", line)
    # torch takes the size of its thread pool from here when it is imported, which only the unfused variant needs.
    os.environ["OMP_NUM_THREADS"] = str(settings.threads or usable_cores())
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    descriptors.raise_limit()
    _engine.keep_little_free_memory()
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
    # Without files to reread, SIGHUP keeps its default and ends the server: a terminal that is closed sends it.
    if service.credentials.reloads or service.reloader.on:
        loop.add_signal_handler(signal.SIGHUP, service.ask_to_reload)
    try:
        await service.load()
        _announce(service.banner(), service.settings)
        await stopping.wait()
    finally:
        ended = await service.stop()
    if not ended:
        _leave(0)  # a load cannot be interrupted, and the next start finds the files whole
    # Another thread may wait for a share that does not answer.
    end = threading.Timer(MAX_WAIT_FOR_LOADS_S, _leave, (0,))
    end.daemon = True
    end.start()


def _leave(code: int) -> NoReturn:
    logging.shutdown()
    os._exit(code)


def _announce(text: str, settings: Settings) -> None:
    """Prints the banner on stdout; a server that logs JSON logs it instead."""
    if settings.log_format == "text":
        print(text, flush=True)
        return
    for line in text.splitlines():
        log.info("%s", " ".join(line.split()))


def _on_signal(number: int, service: Service, stopping: asyncio.Event) -> None:
    if service.loading:
        # Nothing was accepted yet, and building a kernel cannot be interrupted.
        log.info("stopped while loading")
        _leave(128 + number)
    if stopping.is_set() and service.leave_now.is_set():
        log.warning("second signal: exit without waiting")
        _leave(128 + number)
    if stopping.is_set():
        service.leave_now.set()
    stopping.set()
