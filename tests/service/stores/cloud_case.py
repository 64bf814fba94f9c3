# SPDX-License-Identifier: Apache-2.0
"""A repository in a store that is not S3, mirrored twice: `cloud_case.py MODULES gs|hf REPOSITORY CACHE PORT`. It is a
program of its own, since its packages are not in the tests' environment. Prints which file it has and the problems,
each time, then where the mirror is."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fused_mlp.service.stores.mirror import Mirror

modules, kind, repository, cache, port = sys.argv[1:]
sys.path.append(modules)  # after our own packages
ROOT = Path(repository)


@contextmanager
def google_storage() -> Iterator[str]:
    """An emulator from PyPI."""
    os.environ["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{port}"
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = (
        "false"  # asks by gRPC, which the emulator does not speak
    )
    import gcsfs
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", int(port), in_memory=True, default_bucket="models")
    server.start()
    store = gcsfs.GCSFileSystem(token="anon")
    for path in ROOT.rglob("*"):
        if path.is_file():
            store.pipe_file(f"models/prod/{path.relative_to(ROOT)}", path.read_bytes())
    yield "gs://models/prod"
    server.stop()


class Hub(BaseHTTPRequestHandler):
    """The three calls that huggingface_hub makes to list and read a public repository."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/api/models/org/repo":
            self._send(200, json.dumps({"id": "org/repo", "sha": "0" * 40}).encode())
        elif path == "/api/models/org/repo/tree/main":
            files = [path for path in ROOT.rglob("*") if path.is_file()]
            self._send(200, json.dumps([self._describe(path) for path in files]).encode())
        elif path.startswith("/org/repo/resolve/main/"):
            data = (ROOT / path.removeprefix("/org/repo/resolve/main/")).read_bytes()
            first, last = (int(text) for text in self.headers["range"].removeprefix("bytes=").split("-"))
            self._send(206, data[first : last + 1])
        else:
            self._send(404, b"")

    def _describe(self, path: Path) -> dict[str, object]:
        data = path.read_bytes()
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return {"type": "file", "oid": oid, "size": len(data), "path": str(path.relative_to(ROOT))}

    def _send(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def hugging_face() -> Iterator[str]:
    """A stand-in for the hub; the client is the real one."""
    os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{port}"
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Hub)
    threading.Thread(target=server.serve_forever).start()
    yield "hf://org/repo"
    server.shutdown()


with {"gs": google_storage, "hf": hugging_face}[kind]() as url:
    mirror = Mirror(url, Path(cache))
    for _ in range(2):
        mirror.synchronise()
        print([path.stat().st_ino for path in mirror.folder.glob("*/*/.source.json")], mirror.problems)
    print(mirror.folder, flush=True)
os._exit(0)  # threads of those packages may go on
