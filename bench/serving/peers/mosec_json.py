# SPDX-License-Identifier: Apache-2.0
"""A peer of rest_peers.py: `mosec_json.py PORT`, with the model's folder in PEER_MODEL. A module of its own,
because mosec's workers are processes that import it again."""

from __future__ import annotations

import sys
from typing import Any

import mosec
import numpy as np

from bench.serving.peers.eager import EagerModel
from bench.serving.peers.limits import MAX_BATCH, MAX_WAIT_S, WORKERS


class Infer(mosec.Worker):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self._model = EagerModel()

    def forward(self, data: list[Any]) -> list[Any]:
        rows = np.array([each["inputs"][0]["data"] for each in data], np.float32)
        return [{"outputs": [{"name": "output", "data": row.tolist()}]} for row in self._model.predict(rows)]


if __name__ == "__main__":
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", sys.argv[1], "--log-level", "error"]
    server = mosec.Server()
    server.append_worker(Infer, num=WORKERS, max_batch_size=MAX_BATCH, max_wait_time=int(1000 * MAX_WAIT_S))
    server.run()
