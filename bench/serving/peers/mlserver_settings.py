# SPDX-License-Identifier: Apache-2.0
"""MLServer with a custom runtime and adaptive batches, in a folder of settings that `prepare` writes. With the model's
folder in PEER_MODEL."""

from __future__ import annotations

import json
from pathlib import Path

from bench.serving.peers.limits import MAX_BATCH, MAX_WAIT_S


def prepare(folder: Path, model: str, http_port: int, grpc_port: int) -> None:
    """Writes the settings of `mlserver start FOLDER`. The server's own process infers: a worker process costs more
    than a small model takes."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "host": "127.0.0.1", "http_port": http_port, "grpc_port": grpc_port, "metrics_endpoint": None,
        "parallel_workers": 0, "debug": False,
    }  # fmt: skip
    runtime = {
        "name": model, "implementation": "bench.serving.peers.mlserver_runtime.Infer",
        "max_batch_size": MAX_BATCH, "max_batch_time": MAX_WAIT_S,
    }  # fmt: skip
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(runtime))
