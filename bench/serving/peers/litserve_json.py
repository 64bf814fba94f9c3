# SPDX-License-Identifier: Apache-2.0
"""LitServe with JSON: `litserve_json.py PORT`. It reads a request as JSON or as a form, and has no raw bytes."""

from __future__ import annotations

import sys
from typing import Any

import litserve
import numpy as np

from bench.serving.peers.eager import EagerModel
from bench.serving.peers.limits import MAX_BATCH, MAX_WAIT_S, WORKERS


class Infer(litserve.LitAPI):  # type: ignore[misc, unused-ignore]
    def setup(self, device: str) -> None:
        self.model = EagerModel()

    # An annotation here would be a model of pydantic for the body; without one LitServe gives what JSON has.
    def decode_request(self, request, **_: Any) -> np.ndarray:  # type: ignore[no-untyped-def]
        return np.array(request["rows"][0], np.float32)

    def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
        return np.stack(inputs)

    def predict(self, x: np.ndarray, **_: Any) -> np.ndarray:
        return self.model.predict(x)

    def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
        return list(output)

    def encode_response(self, output: np.ndarray, **_: Any) -> list[list[float]]:
        return [output.tolist()]


if __name__ == "__main__":
    api = Infer(max_batch_size=MAX_BATCH, batch_timeout=MAX_WAIT_S, api_path="/inference")
    # The fast queue is ZeroMQ, which LitServe recommends from 100 requests/s on.
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=WORKERS, fast_queue=True)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error")
