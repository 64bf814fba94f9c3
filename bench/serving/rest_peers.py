# SPDX-License-Identifier: Apache-2.0
"""Other people's ways to serve a model over HTTP with JSON: FastAPI with torch, an afternoon's work, and mosec, with
its dynamic batches. In a venv of their own that borrows torch from ours."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / "build" / "rest-peers"
PACKAGES = ("fastapi>=0.110", "uvicorn[standard]>=0.30", "mosec>=0.9")
NAMES = {"fastapi": "FastAPI and torch", "mosec": "mosec and torch"}


def install() -> Path:
    """The interpreter; raises CalledProcessError where the packages cannot be had."""
    python = VENV / "bin" / "python"
    if not (VENV / ".installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (site,) = VENV.glob("lib/python*/site-packages")
        (site / "torch_of_ours.pth").write_text(
            f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        )
        (VENV / ".installed").touch()
    return python


@contextmanager
def start_peers(repository: Path, model: str, wanted: bool) -> Iterator[dict[str, int]]:
    """Their ports, by name."""
    ports: dict[str, int] = {}
    with ExitStack() as running:
        if wanted:
            python = install()
            for port, (kind, name) in enumerate(NAMES.items(), 18_600):
                process = subprocess.Popen(
                    [str(python), "-m", f"bench.serving.rest_peer_{kind}", str(port)],
                    cwd=ROOT,
                    env=os.environ | {"PEER_MODEL": str(repository / model / "1")},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                running.callback(process.wait)
                running.callback(process.terminate)
                _wait(port, process)
                ports[name] = port
        yield ports


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "a peer did not start"
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("a peer does not listen")
