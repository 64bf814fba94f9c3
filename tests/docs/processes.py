# SPDX-License-Identifier: Apache-2.0
"""Processes of a page: each in a process group of its own, its output in a file, ended as a whole."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SECONDS_PER_BLOCK = 120
_ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Process:
    def __init__(
        self, command: Sequence[str], folder: Path, env: Mapping[str, str], pass_fds: Sequence[int] = ()
    ) -> None:
        self._output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in end
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
        )

    def output(self) -> str:
        self._output.flush()
        # By position: the process writes through the same file.
        written = os.pread(self._output.fileno(), os.fstat(self._output.fileno()).st_size, 0)
        return _ANSI.sub("", written.decode(errors="replace"))

    def wait_until(self, ready: Callable[[], bool], seconds: float = 60) -> bool:
        """False: the process ended, or the time was over, before it was ready."""
        until = time.monotonic() + seconds
        while not ready():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
                return False
            if time.monotonic() > until:
                return False
        return True

    def end(self) -> None:
        """All of the group: a server that a shell started, too."""
        for number, patience_s in ((signal.SIGTERM, 30), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._output.close()


class Namespace(Process):
    """Runs Python blocks one after the other; see namespace.py."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        # namespace.py reads 3 and writes 4, whatever the pipes are called here.
        shell = f'exec "$0" -u "$1" 3<&{theirs_in} 4>&{theirs_out}'
        program = str(Path(__file__).with_name("namespace.py"))
        super().__init__(
            ["bash", "-c", shell, sys.executable, program], folder, env, pass_fds=(theirs_in, theirs_out)
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._blocks = os.fdopen(ours_out, "w", buffering=1)
        self._answers = os.fdopen(ours_in)

    def run(self, code: str, file: str, line: int) -> tuple[bool, str]:
        """Whether the block succeeded, and what it printed."""
        before = len(self.output())
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"code": code, "file": file, "line": line}), file=self._blocks)
        # An empty line: the process has ended. A block that hangs is ended by pytest-timeout.
        succeeded = self._answers.readline() == "ok\n"
        return succeeded, self.output()[before:]

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._blocks.close()
        self._answers.close()
        super().end()


def answers(url: str) -> bool:
    """Whatever the certificate: of a page's own authority, if it is https."""
    context = ssl._create_unverified_context() if url.startswith("https") else None
    try:
        with urllib.request.urlopen(url, timeout=5, context=context) as response:
            return response.status == 200
    except OSError:
        return False


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
