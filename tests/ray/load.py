# SPDX-License-Identifier: Apache-2.0
"""Load as a client without a proxy makes it: gRPC's own round robin over the addresses in endpoints.txt, which is read
again when it changes. Or to one address, that of a proxy. No call is tried again, so each that fails is seen."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Self

import numpy as np

from fused_mlp.service.client import Client, PredictError, RetryPolicy

ONCE = RetryPolicy(attempts=1)


class Load:
    def __init__(self, place: Path | str, threads: int = 4, rows: int = 1, pause_s: float = 0.005) -> None:
        self._place = place
        self._text = ""
        self._clients: list[Client] = []
        self._stopped = threading.Event()
        self._rows = np.ones((rows, 64), np.float32)
        self._pause_s = pause_s
        self.in_flight = threads
        self.ok = [0] * threads
        self.failures: list[PredictError] = []
        self._follow()
        self._threads = [threading.Thread(target=self._call, args=(i,)) for i in range(threads)]
        self._threads.append(threading.Thread(target=self._keep_following))
        for thread in self._threads:
            thread.start()

    def _follow(self) -> None:
        text = self._place if isinstance(self._place, str) else (self._place / "endpoints.txt").read_text()
        if text != self._text:
            self._text = text
            target = "ipv4:" + ",".join(text.split())
            # Those of before stay open until the end: closing them would cancel their calls.
            # Through a proxy gRPC would watch the health of one replica behind it, and give up the proxy with that one.
            balancing = "pick_first" if isinstance(self._place, str) else "round_robin"
            self._clients.append(Client(target, retry=ONCE, balancing=balancing))

    def _keep_following(self) -> None:
        while not self._stopped.wait(0.05):
            self._follow()

    def _call(self, index: int) -> None:
        while not self._stopped.is_set():
            try:
                self._clients[-1].predict("digits", self._rows)
                self.ok[index] += 1
            except PredictError as error:
                self.failures.append(error)
            time.sleep(self._pause_s)

    def calls(self) -> int:
        return sum(self.ok)

    def told(self) -> str:
        return f"{len(self.failures)} of {self.calls() + len(self.failures):,} calls failed"

    def wait_for(self, more: int) -> None:
        """Until that many more calls have been answered."""
        wanted, began = self.calls() + more, time.monotonic()
        while self.calls() < wanted:
            assert time.monotonic() - began < 60, (
                f"only {self.calls()} of {wanted} calls, {self.failures[-3:]}"
            )
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        for client in self._clients:
            client.close()
