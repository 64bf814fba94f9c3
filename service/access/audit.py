# SPDX-License-Identifier: Apache-2.0
"""The record of administrative actions: one structured line for each, in the log and in the file that
FUSED_MLP_AUDIT_LOG names. Any thread may call record()."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from pathlib import Path

log = logging.getLogger(__name__)
_audit = logging.getLogger("fused_mlp.audit")
_audit.setLevel(logging.INFO)  # FUSED_MLP_LOG_LEVEL does not silence it

SERVER = "server"  # performs automatic changes
# Callers choose these texts: bounding each of them bounds the line.
MAX_CHARACTERS = {"who": 200, "model": 128, "arguments": 300, "error": 500}
_LOG_EVERY_S = 10.0


def record(
    action: str,
    *,
    who: str = SERVER,
    address: str = "",
    model: str = "",
    version: int = 0,
    arguments: str = "",
    result: str = "OK",
    error: str = "",
    request_id: str = "",
) -> None:
    """`result`: OK or the name of a gRPC code; `error`: its text. Empty fields are left out."""
    now = time.time()
    fields: dict[str, str | int] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z",
        "who": who,
        "address": address,
        "action": action,
        "model": model,
        "version": version,
        "arguments": arguments,
        "result": result,
        "error": error,
        "request_id": request_id,
    }
    for name, most in MAX_CHARACTERS.items():
        text = str(fields[name])
        fields[name] = text if len(text) <= most else f"{text[:most]}..."
    fields = {name: value for name, value in fields.items() if value}
    shown = " ".join(f"{name}={_quoted(value)}" for name, value in fields.items() if name != "time")
    _audit.info("audit: %s", shown, extra={"audit": fields})


def _quoted(value: str | int) -> str:
    text = str(value)
    return text if text.isprintable() and not set(text) & set(' "=\\') else json.dumps(text)


class AuditFile(logging.Handler):
    """Appends each line to a file. The file is opened for each line: lines are rare, and a file that logrotate moved
    away or a disk that was full needs no further care. Raises OSError when the file cannot be opened."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.results = {"ok": 0, "failed": 0}
        self._torn = False  # the disk was full in the middle of a line
        self._log_from_s = 0.0
        self._writing = threading.Lock()
        os.close(self._open())
        _audit.addHandler(self)

    def close(self) -> None:
        _audit.removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """A line that cannot be written is logged and counted; the action itself goes on."""
        line = json.dumps(getattr(record, "audit", {})) + "\n"  # in ASCII: hostile characters are escaped
        with self._writing:
            try:
                self._append(line.encode())
                self.results["ok"] += 1
            except OSError as error:
                self.results["failed"] += 1
                if (now := time.monotonic()) >= self._log_from_s:
                    self._log_from_s = now + _LOG_EVERY_S
                    log.error("%s: an audit line was not written: %s", self.path, error.strerror or error)

    def _append(self, line: bytes) -> None:
        descriptor = self._open()
        try:
            data = b"\n" + line if self._torn else line
            # One write with O_APPEND: lines of several servers do not mix.
            written = os.write(descriptor, data)
            self._torn = written < len(data)
        finally:
            os.close(descriptor)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self) -> int:
        # O_NONBLOCK: a FIFO without a reader is an error, not a wait.
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
