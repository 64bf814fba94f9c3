# SPDX-License-Identifier: Apache-2.0
"""A real server process for tests: `fused-mlp serve` on free ports, with its output kept."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support import sanitized

COMMAND = sanitized.command()


class Server:
    """Started when constructed, ready when that returns; raises with its stderr if it is not. A subclass may wait for
    something else."""

    def __init__(
        self, *, command: Sequence[str] = COMMAND, cwd: Path | None = None, **settings: object
    ) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in stop
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(**settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        self.banner = self._read_banner()
        self.target = self._find(r"gRPC +(\S+)")
        self.metrics_url = self._find(r"(https?://\S+)/metrics")

    def _read_banner(self) -> str:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.lstrip().startswith("try "):  # the demo has an example, so this line ends the banner
                return "".join(lines)
        raise AssertionError(f"the server did not start: {self.stop()}")

    def _find(self, pattern: str) -> str:
        match = re.search(pattern, self.banner)
        assert match, self.banner
        return match[1]

    def get(self, path: str, headers: Mapping[str, str] = {}) -> tuple[int, str]:
        try:
            request = urllib.request.Request(self.metrics_url + path, headers=dict(headers))
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name which have these labels."""
        return sum_metric(self.get("/metrics")[1], name, labels)

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def pause(self) -> None:
        """Stop the process; returns when every thread of it stands still."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def wait(self, timeout_s: float = 30) -> int:
        return self.process.wait(timeout_s)

    def stop(self) -> str:
        """End the process, whatever its state; returns what it logged."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self._log.closed:
            return ""
        log = self.log()
        self._log.close()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        assert not sanitized.findings(log), sanitized.findings(log)
        return log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def sum_metric(text: str, name: str, labels: dict[str, str]) -> float:
    total = 0.0
    for line in text.splitlines():
        match = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if match:
            have = dict(re.findall(r'(\w+)="([^"]*)"', match[1] or ""))
            if labels.items() <= have.items():
                total += float(match[2])
    return total


# Below what the kernel hands out by itself: a connection made between the choice of a port and its use cannot take it.
# From a random one on, since other processes choose here too.
_named_ports = itertools.islice(itertools.cycle(range(10_000, 32_000)), random.randrange(22_000), None)
_claims: list[socket.socket] = []


def free_port() -> int:
    """For a port that has to be named: free a moment ago, and named by no other test run on this machine."""
    for port in _named_ports:
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe, contextlib.suppress(OSError):
            claim.bind(f"\0fused-mlp-tests-port-{port}")  # until this process ends
            _claims.append(claim)
            probe.bind(("127.0.0.1", port))
            return port
        if claim not in _claims:
            claim.close()
    raise AssertionError("unreachable: the ports are a cycle")


def environment(**settings: object) -> dict[str, str]:
    """The environment of a server: free ports, none of the caller's own settings, then `settings`."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FUSED_MLP_")}
    # A sanitizer build, or a forced instruction set, is meant for the servers under test too.
    kept = {key: os.environ[key] for key in ("FUSED_MLP_ISA", "FUSED_MLP_FRONT") if key in os.environ}
    wanted: dict[str, object] = {"grpc_port": 0, "rest_port": "off", "metrics_port": 0, **settings}
    inherited |= sanitized.environment()
    return inherited | kept | {f"FUSED_MLP_{key.upper()}": str(value) for key, value in wanted.items()}


def run_to_exit(**settings: object) -> subprocess.CompletedProcess[str]:
    """Start a server that is expected to refuse to start."""
    return subprocess.run(COMMAND, env=environment(**settings), capture_output=True, text=True, timeout=60)


def demo_copy(root: Path) -> Path:
    """A repository of one's own, with the demo model in it."""
    import shutil

    from fused_mlp import models

    demo = Path(models.__file__).parent / "demo" / "digits" / "1"
    shutil.copytree(demo, root / "digits" / "1")
    return root
