# SPDX-License-Identifier: Apache-2.0
"""mosec with one row of float32 as bytes in a request, its fastest way: `mosec_bytes.py PORT`, with the model's folder
in PEER_MODEL. A module of its own, because mosec's workers are processes that import it again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mosec
import numpy as np
import torch

from bench.serving.peers.limits import MAX_BATCH, MAX_WAIT_S, WORKERS
from fused_mlp import models


class Infer(mosec.Worker):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self.module = models.load(Path(os.environ["PEER_MODEL"])).to_torch().eval()

    def deserialize(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, np.float32)

    def serialize(self, data: np.ndarray) -> bytes:
        return data.tobytes()

    def forward(self, data: list[np.ndarray]) -> list[np.ndarray]:
        with torch.inference_mode():
            return list(self.module(torch.from_numpy(np.stack(data))).numpy())


if __name__ == "__main__":
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", sys.argv[1], "--log-level", "error"]
    server = mosec.Server()
    server.append_worker(Infer, num=WORKERS, max_batch_size=MAX_BATCH, max_wait_time=int(1000 * MAX_WAIT_S))
    server.run()
