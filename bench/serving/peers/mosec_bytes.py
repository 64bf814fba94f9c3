# SPDX-License-Identifier: Apache-2.0
"""mosec with rows of float32 as bytes in a request, its fastest way: `mosec_bytes.py PORT`, with the model's folder
in PEER_MODEL. A module of its own, because mosec's workers are processes that import it again."""

from __future__ import annotations

import sys

import mosec
import numpy as np

from bench.serving.peers.eager import EagerModel
from bench.serving.peers.limits import MAX_BATCH, MAX_WAIT_S, WORKERS


class Infer(mosec.Worker):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self._model = EagerModel()

    def deserialize(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, np.float32).reshape(-1, self._model.in_features)

    def serialize(self, data: np.ndarray) -> bytes:
        return data.tobytes()

    def forward(self, data: list[np.ndarray]) -> list[np.ndarray]:
        outputs = self._model.predict(np.concatenate(data))
        return np.split(outputs, np.cumsum([len(rows) for rows in data])[:-1])


if __name__ == "__main__":
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", sys.argv[1], "--log-level", "error"]
    server = mosec.Server()
    server.append_worker(Infer, num=WORKERS, max_batch_size=MAX_BATCH, max_wait_time=int(1000 * MAX_WAIT_S))
    server.run()
