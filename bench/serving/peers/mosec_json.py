# SPDX-License-Identifier: Apache-2.0
"""A peer of rest_peers.py: `mosec_json.py PORT`, with the model's folder in PEER_MODEL. A module of its own,
because mosec's workers are processes that import it again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import mosec
import torch

from fused_mlp import models


class Infer(mosec.Worker):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self.module = models.load(Path(os.environ["PEER_MODEL"])).to_torch().eval()

    def forward(self, data: list[Any]) -> list[Any]:
        rows = torch.tensor([each["inputs"][0]["data"] for each in data], dtype=torch.float32)
        with torch.inference_mode():
            outputs = self.module(rows)
        return [{"outputs": [{"name": "output", "data": row.tolist()}]} for row in outputs]


if __name__ == "__main__":
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", sys.argv[1], "--log-level", "error"]
    server = mosec.Server()
    server.append_worker(Infer, num=1, max_batch_size=64)
    server.run()
