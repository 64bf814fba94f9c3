# SPDX-License-Identifier: Apache-2.0
"""A service in this process, on real sockets, whose fused kernel does what the test says: block until released,
raise, or be wrong. Also a second way to look at what the engine was given."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from typing import Any, Self

import numpy as np

from fused_mlp import kernels
from fused_mlp.kernels import Backend, Kernel, KernelInfo
from fused_mlp.models import Mlp
from fused_mlp.service.app import Service
from fused_mlp.service.settings.environment import load_settings
from tests.support.server import sum_metric
from tests.support.waiting import wait_until

# A first value that makes the puppet raise: far outside of what the tests send otherwise.
POISON = 666.0


class PuppetKernel(Kernel):
    """Eager inside, so that it passes the check at load; held back while `gate` is closed."""

    def __init__(self, mlp: Mlp, threads: int | None) -> None:
        info = KernelInfo("fused", "puppet", "cpu", "puppet", "none", mlp.spec.dtype, threads or 1)
        super().__init__(mlp.spec, info)
        self._eager = kernels.compile(mlp, variant="unfused", device="cpu")
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.error = 0.0  # added to the outputs of rows whose first value is at least `error_from`
        self.error_from = -np.inf
        self.batches: list[np.ndarray[Any, Any]] = []

    def run(self, x: Any, y: Any) -> str:
        self.batches.append(x.copy())
        self.entered.release()
        self.gate.wait()
        if (x[:, 0] == POISON).any():
            raise RuntimeError("the puppet was poisoned")
        strategy = self._eager.run(x, y)
        if self.error != 0:
            y[~(x[:, 0] < self.error_from)] += self.error
        return strategy


_built: list[PuppetKernel] = []


def _build(mlp: Mlp, threads: int | None) -> PuppetKernel:
    kernel = PuppetKernel(mlp, threads)
    _built.append(kernel)
    return kernel


kernels.register(Backend("puppet", "fused", "cpu", -1, lambda _: None, _build))


class PuppetService:
    """`with PuppetService(front="python", queue_rows=4) as puppet:` then a client on puppet.target."""

    def __init__(self, **settings: object) -> None:
        defaults = {"backend": "puppet", "grpc_port": 0, "rest_port": "off", "metrics_port": 0}
        self.service = Service(load_settings(**{**defaults, **settings}), workers=1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.service.grpc_port}"

    @property
    def admin_target(self) -> str:
        return f"127.0.0.1:{self.service.admin_port}"

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name which have these labels."""
        url = f"http://127.0.0.1:{self.service.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            return sum_metric(response.read().decode(), name, labels)

    def hold(self) -> None:
        self.kernel.gate.clear()

    def release(self) -> None:
        self.kernel.gate.set()

    def wait_entered(self) -> None:
        """Until the kernel has been called once more than was waited for before."""
        assert self.kernel.entered.acquire(timeout=30), "the kernel was not called"

    wait_for = staticmethod(wait_until)

    def lane(self, variant: str = "fused") -> Any:
        return self.service.catalog.find("digits").lanes[variant]  # type: ignore[index]

    def __enter__(self) -> Self:
        try:
            self.run(self.service.start())
            self.run(self.service.load())
        except BaseException:
            self._end_loop()  # its thread would keep the process from ending
            raise
        settings = self.service.settings
        if settings.backend == "puppet" and settings.load == "eager":
            self.use_last_kernel()
        return self  # else a real kernel, or none yet: nothing to pull strings on

    def use_last_kernel(self) -> None:
        """Pull the strings of the kernel that was built last."""
        self.kernel = _built[-1]
        self.kernel.batches.clear()
        while self.kernel.entered.acquire(blocking=False):
            pass  # the check at load entered too

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "kernel"):
            self.release()
        self.run(self.service.stop())
        self._end_loop()

    def _end_loop(self) -> None:
        self.service.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Any) -> None:
        """On the loop of the service."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)
