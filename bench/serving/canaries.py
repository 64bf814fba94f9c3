# SPDX-License-Identifier: Apache-2.0
"""How often a canary judges wrongly: `python -m bench.serving.canaries` (four minutes; `--quick`: one). Short canaries
of ten models at once, each with a trickle of requests: to an identical version, which must be promoted, and to one
three times as heavy, which must be taken back; on a quiet server, and beside a neighbour that saturates it now and
then."""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.provenance import describe_run, h2load_version, write_result
from bench.serving.load import PREDICT, write_frame
from bench.serving.systems import service
from bench.startup import free_port
from fused_mlp import models
from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.service.client.admin import AdminClient

RESULTS = Path(__file__).parent.parent / "results" / "canaries.json"
WIDTHS = {
    1: (128, 512, 512, 10),
    2: (128, 512, 512, 10),
    3: (128, 920, 920, 10),
}  # the last: 3 times the work
MODELS = 10
RPS = 120  # of each model
ROWS = 8  # of a request: the kernel, not the transport, decides how long it takes
PLAN = {"steps": [20.0, 50.0, 100.0], "interval_s": 2.0}
MAX_S = 60.0  # for one canary
CASES = {"identical": (2, "promoted"), "three times as heavy": (3, "rolled_back")}


def make_models(root: Path) -> Path:
    torch.manual_seed(0)
    for version, widths in WIDTHS.items():
        layers = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())][:-1]
        mlp = models.from_torch(nn.Sequential(*layers))
        for index in range(MODELS):
            models.save(mlp, root / f"m{index}" / str(version))
    models.save(models.from_torch(nn.Linear(128, 10)), root / "neighbour" / "1")
    return root


@contextmanager
def load(port: int, model: str, rows: int, folder: Path, *options: str) -> Iterator[None]:
    """h2load in the background, until the end of the block."""
    tensor = fm.Tensor(shape=(rows, 128), data=torch.rand(rows, 128).numpy().tobytes())
    message = fm.PredictRequest(model=model, input=tensor).SerializeToString()
    frame = write_frame(folder / f"{model}-{rows}", message)
    command = [
        "h2load", "--threads=1", "--duration=3600", *options, f"--data={frame}",
        "--header=content-type: application/grpc", "--header=te: trailers", f"http://127.0.0.1:{port}{PREDICT}",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def neighbour(port: int, folder: Path) -> Iterator[None]:
    """Saturates the server for a second or two, pauses for as long, and so on."""
    ended = threading.Event()
    rng = random.Random(0)

    def run() -> None:
        while not ended.is_set():
            with load(port, "neighbour", 64, folder, "--clients=4", "--max-concurrent-streams=4"):
                ended.wait(rng.uniform(0.5, 2))
            ended.wait(rng.uniform(0.5, 2))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def run_round(admin: AdminClient, version: int) -> list[tuple[str, str]]:
    """One canary of each model at once: how each ended, and the server's words."""
    names = [f"m{index}" for index in range(MODELS)]
    for name in names:
        admin.pin(name, 1)
        admin.start_canary(name, str(version), **PLAN)
    ends: dict[str, tuple[str, str]] = {}
    began = time.monotonic()
    while len(ends) < len(names) and time.monotonic() - began < MAX_S:
        time.sleep(0.3)
        for policy in admin.policies():
            if policy.model in names and policy.canary is not None and policy.canary.state != "running":
                ends[policy.model] = (policy.canary.state, policy.canary.text)
    return [ends.get(name, ("running", "did not end")) for name in names]


def run(canaries: int, folder: Path) -> dict[str, Any]:
    repository = make_models(folder / "models")
    result: dict[str, Any] = {}
    admin_port = free_port()
    with (
        service("canaries", repository, False, front="native", admin_port=admin_port) as server,
        AdminClient(f"127.0.0.1:{admin_port}") as admin,
        ExitStack() as trickle,
    ):
        for index in range(MODELS):
            trickle.enter_context(
                load(server.port, f"m{index}", ROWS, folder, "--clients=2", f"--rps={RPS // 2}")
            )
        for situation in ("quiet", "beside a neighbour"):
            with ExitStack() as beside:
                if situation != "quiet":
                    beside.enter_context(neighbour(server.port, folder))
                for case, (version, right) in CASES.items():
                    ends = [end for _ in range(-(-canaries // MODELS)) for end in run_round(admin, version)]
                    wrong = [text for state, text in ends if state != right]
                    counts = Counter(state for state, _ in ends)
                    result[f"{case}, {situation}"] = {
                        "canaries": len(ends), "wrong": len(wrong), **counts, "why": wrong[:5]
                    }  # fmt: skip
                    print(
                        f"{case}, {situation}: {len(wrong)} of {len(ends)} wrong {dict(counts)}", flush=True
                    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--canaries", type=int, default=50)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(10 if arguments.quick else arguments.canaries, Path(folder))
    run_of = describe_run("bench.serving.canaries", ("grpcio",), {"h2load": h2load_version()})
    write_result(arguments.output, {**run_of, "plan": PLAN, "rps": RPS, "cases": result})


if __name__ == "__main__":
    main()
