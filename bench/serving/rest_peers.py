# SPDX-License-Identifier: Apache-2.0
"""Other people's ways to serve a model over HTTP with JSON: FastAPI with torch, an afternoon's work, and mosec, with
its dynamic batches."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.serving.peers.venvs import ROOT, install, version

NAMES = {"fastapi": "FastAPI and torch", "mosec": "mosec and torch"}


def versions() -> dict[str, str]:
    python = install("rest-peers")
    return {package: version(python, package) for package in NAMES}


@contextmanager
def start_peers(repository: Path, model: str, wanted: bool) -> Iterator[dict[str, int]]:
    """Their ports, by name."""
    ports: dict[str, int] = {}
    with ExitStack() as running:
        if wanted:
            python = install("rest-peers")
            for port, (kind, name) in enumerate(NAMES.items(), 18_600):
                process = subprocess.Popen(
                    [str(python), "-m", f"bench.serving.peers.{kind}_json", str(port)],
                    cwd=ROOT,
                    env=os.environ | {"PEER_MODEL": str(repository / model / "1")},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                running.callback(process.wait)
                running.callback(process.terminate)
                wait_for_http(f"http://127.0.0.1:{port}/", process)
                ports[name] = port
        yield ports


def wait_for_http(
    url: str, process: subprocess.Popen[bytes] | subprocess.Popen[str], any_answer: bool = True
) -> None:
    """Until something answers there; with `any_answer` an error of the client's is an answer too."""
    for _ in range(600):
        assert process.poll() is None, "a peer did not start"
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except urllib.error.HTTPError as error:
            if any_answer and error.code < 500:
                return
        except OSError:
            pass
        else:
            return
        time.sleep(0.1)
    raise AssertionError("a peer does not listen")
