"""A server that `fused-mlp ab` starts for itself: a child process on free loopback ports, which lets a request name
its variant and runs neither a split nor a shadow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from fused_mlp.service.ab import child_process

_PREFIX = "FUSED_MLP_"  # not imported from the settings: this command runs without the packages of a server
# Overridden: addresses, and settings that a comparison depends on.
_OURS = {
    "HOST": "127.0.0.1",
    "GRPC_PORT": "0",
    "METRICS_HOST": "127.0.0.1",
    "METRICS_PORT": "0",
    "ALLOW_OVERRIDE": "1",
    "VARIANT": "fused",
    "LOG_FORMAT": "text",
}
# Dropped: a split or a shadow would mix the variants that are compared; TLS and the admin port are not needed.
_DROPPED = ("TLS_", "TARGET", "SPLIT", "SHADOW", "POLICY", "ON_MISMATCH", "ADMIN_")
_GRPC = re.compile(r"^ *gRPC +(\S+)", re.MULTILINE)
_METRICS = re.compile(r"^ *metrics +(http://\S+)/metrics", re.MULTILINE)


class ServerDidNotStart(Exception):
    """The text is the last line of the server's log."""


class OwnServer:
    """Both ports are open when the constructor returns."""

    def __init__(self, repository: Path | None) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in stop
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fused_mlp.service.cli", "serve"],
            env=_environment(repository),
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.target, self.metrics_url = self._read_addresses()

    def _read_addresses(self) -> tuple[str, str]:
        assert self._process.stdout is not None
        text = ""
        for line in self._process.stdout:
            text += line
            grpc, metrics = _GRPC.search(text), _METRICS.search(text)
            if grpc and metrics:
                return grpc[1], metrics[1]
        self._process.wait()
        self._log.seek(0)
        said = self._log.read().strip().splitlines() or ["its log is empty"]
        self.stop()
        raise ServerDidNotStart(f"the server did not start: {said[-1].removeprefix('error: ')}")

    def stop(self) -> None:
        child_process.end(self._process)
        self._log.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _environment(repository: Path | None) -> dict[str, str]:
    """The caller's own settings (threads, device, backend) apply, except those that a comparison must control."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(tuple(_PREFIX + rest for rest in _DROPPED))
    }
    ours = {_PREFIX + name: value for name, value in _OURS.items()}
    if repository is not None:
        ours[_PREFIX + "MODEL_REPOSITORY"] = str(repository)
    return kept | ours
