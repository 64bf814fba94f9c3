# SPDX-License-Identifier: Apache-2.0
"""A server as a child process, on free loopback ports. It ends with this process, whatever ends that. Needs none of the
packages of a server itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Self

from fused_mlp.service.local import child_process

PREFIX = "FUSED_MLP_"
# Addresses, and the form of a log that is read here.
ADDRESSES = {
    "HOST": "127.0.0.1",
    "GRPC_PORT": "0",
    "REST_PORT": "off",
    "METRICS_HOST": "127.0.0.1",
    "METRICS_PORT": "0",
    "LOG_FORMAT": "text",
}
_GRPC = re.compile(r"^ *gRPC +(\S+)", re.MULTILINE)
_METRICS = re.compile(r"^ *metrics +(http://\S+)/metrics", re.MULTILINE)


def environment(wanted: Mapping[str, object], dropped: Sequence[str] = ("",)) -> dict[str, str]:
    """The variables of this process, ADDRESSES, and the settings `wanted`. Our own variables that begin with one of
    `dropped` are left out: all of them by default."""
    ours = tuple(PREFIX + name for name in dropped)
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(ours)}
    settings = ADDRESSES | {name.upper(): str(value) for name, value in wanted.items()}
    return kept | {PREFIX + name: value for name, value in settings.items()}


class ServerDidNotStart(Exception):
    """The text is the last line of the server's log."""


class ChildServer:
    """It answers when the constructor returns. `environment` is all that it gets; `folder` is deleted when it ends.
    `prefix` is put before its command, to start it elsewhere: `taskset -c 3`, `ip netns exec NAME`. `log`: the file
    that it logs into."""

    def __init__(
        self,
        environment: Mapping[str, str],
        folder: str = "",
        prefix: Sequence[str] = (),
        log: IO[str] | None = None,
    ) -> None:
        self._log = log or tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in stop
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "fused_mlp.service.cli.attached", folder],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # Ctrl-C is for the parent, which stops it in its own time
        )
        try:
            self.target, self.metrics_url = self._read_addresses()
        except BaseException:
            self.stop()
            raise

    def _read_addresses(self) -> tuple[str, str]:
        assert self.process.stdout is not None
        text = ""
        for line in self.process.stdout:
            text += line
            grpc, metrics = _GRPC.search(text), _METRICS.search(text)
            if grpc and metrics:
                return grpc[1], metrics[1]
        self.process.wait()
        said = self.log().strip().splitlines() or ["its log is empty"]
        raise ServerDidNotStart(f"the server did not start: {said[-1].removeprefix('error: ')}")

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def log(self) -> str:
        """The log so far."""
        self._log.seek(0)
        return self._log.read()

    def wait(self) -> int:
        """Until it ends; returns its exit code."""
        return self.process.wait()

    def stop(self, patience_s: float = 20) -> None:
        """Lets it finish its requests and waits for the exit. May be called again."""
        child_process.end(self.process, patience_s)
        self._log.close()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
