# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own, which the benchmark asks in JSON lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


class Worker:
    """One engine's process."""

    def __init__(self, engine: str, threads: int, module: str = "bench.kernels.worker") -> None:
        self.engine = engine
        # Inductor and OpenMP take the thread count from the environment, before they are imported.
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, engine, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if not os.environ.get("BENCH_VERBOSE") else None,
            text=True,
            env=environment,
        )

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        if not reply:
            log = self._process.stderr.read() if self._process.stderr else "(see above)"
            raise SystemExit(f"{self.engine} ended while asked to {command}:\n{log[-2000:]}")
        return json.loads(reply)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
