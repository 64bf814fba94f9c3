"""Other people's ways to serve a model over HTTP with JSON: FastAPI with torch, an afternoon's work, and mosec, with
its dynamic batches. In a venv of their own that borrows torch from ours. `rest_peers.py fastapi|mosec REPOSITORY MODEL
PORT` is one of them as a program."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

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
        (site / "torch_of_ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
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
                command = [
                    str(python),
                    "-m",
                    "bench.serving.rest_peers",
                    kind,
                    str(repository),
                    model,
                    str(port),
                ]
                process = subprocess.Popen(
                    command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
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


def _module(repository: str, model: str) -> Any:
    from fused_mlp import models

    return models.load(Path(repository) / model / "1").to_torch().eval()


def _fastapi(repository: str, model: str, port: int) -> None:
    import fastapi
    import torch
    import uvicorn

    module = _module(repository, model)
    app = fastapi.FastAPI()

    @app.post("/inference")
    async def infer(request: fastapi.Request) -> Any:
        body = await request.json()
        with torch.inference_mode():
            output = module(torch.tensor(body["inputs"][0]["data"]).reshape(body["inputs"][0]["shape"]))
        return {"outputs": [{"name": "output", "shape": list(output.shape), "data": output.ravel().tolist()}]}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


def _mosec(repository: str, model: str, port: int) -> None:
    import mosec
    import torch

    class Infer(mosec.Worker):
        def __init__(self) -> None:
            super().__init__()
            torch.set_num_threads(1)
            self.module = _module(repository, model)

        def forward(self, data: list[Any]) -> list[Any]:
            rows = torch.tensor([each["inputs"][0]["data"] for each in data])
            with torch.inference_mode():
                outputs = self.module(rows)
            return [{"outputs": [{"name": "output", "data": row.tolist()}]} for row in outputs]

    sys.argv[1:] = ["--address", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    server = mosec.Server()
    server.append_worker(Infer, num=1, max_batch_size=64)
    server.run()


if __name__ == "__main__":
    {"fastapi": _fastapi, "mosec": _mosec}[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))
