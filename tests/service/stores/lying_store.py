# SPDX-License-Identifier: Apache-2.0
"""A store of local files that does not always tell the truth: `lying:///path`. What it does to weights is in the
variable LYING_STORE."""

from __future__ import annotations

import io
import os
import threading
import time
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem


class LyingStore(LocalFileSystem):
    protocol = "lying"
    cachable = False
    gate = threading.Event()  # weights pass it in two pieces
    gate.set()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return LocalFileSystem._strip_protocol(path.removeprefix("lying://"))

    def find(self, path: str, **options: Any) -> Any:
        if os.environ.get("LYING_STORE") == "down":
            raise ConnectionError("connection refused")
        return super().find(path, **options)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        lie = os.environ.get("LYING_STORE", "")
        with super().open(path, "rb") as file:
            data = file.read()
        if path.endswith(".safetensors"):
            if lie == "stall":
                print("stalled", flush=True)
                time.sleep(600)
            data = {
                "truncate": data[: len(data) // 2],
                "repeat": data + data,
                "damage": data[:-4] + b"\1\2\3\4",
            }.get(lie, data)
            return Held(data, self.gate)
        return io.BytesIO(data)


class Held(io.BytesIO):
    def __init__(self, data: bytes, gate: threading.Event) -> None:
        super().__init__(data)
        self._gate = gate

    def read(self, size: int | None = -1, /) -> bytes:
        half = len(self.getbuffer()) // 2
        if self.tell() < half:
            return super().read(half)
        self._gate.wait()
        return super().read(size)


def register() -> None:
    fsspec.register_implementation("lying", LyingStore, clobber=True)
