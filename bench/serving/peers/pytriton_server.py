# SPDX-License-Identifier: Apache-2.0
"""pytriton, which hands batches from a Triton server to Python: `pytriton_server.py MODEL HTTP_PORT GRPC_PORT`, with
the model's folder in PEER_MODEL."""

from __future__ import annotations

import signal
import sys

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from bench.serving.peers.eager import EagerModel
from bench.serving.peers.limits import MAX_BATCH, WORKERS


def main(name: str, http_port: int, grpc_port: int) -> None:
    model = EagerModel()

    @batch  # type: ignore[untyped-decorator, unused-ignore]
    def infer(input: np.ndarray) -> dict[str, np.ndarray]:  # noqa: A002 - the name of the tensor
        return {"output": model.predict(input)}

    config = TritonConfig(
        http_port=http_port,
        grpc_port=grpc_port,
        http_address="127.0.0.1",
        grpc_address="127.0.0.1",
        allow_metrics=False,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that Triton is ended too
    with Triton(config=config) as server:
        server.bind(
            model_name=name,
            infer_func=[infer] * WORKERS,  # an instance of Triton for each, in a thread of this process
            inputs=[Tensor(name="input", dtype=np.float32, shape=(-1,))],
            outputs=[Tensor(name="output", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(max_batch_size=MAX_BATCH, batcher=DynamicBatcher()),
        )
        server.serve()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
