# SPDX-License-Identifier: Apache-2.0
"""The baseline, a server written without us: grpc.aio, an asyncio batcher that takes what has queued up while the last
batch ran (at most 64 rows), eager torch with its default of a thread per core. `python -m bench.serving.baseline
REPOSITORY MODEL` prints its port."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import grpc
import numpy as np
import torch

from bench.serving.peers.limits import MAX_BATCH
from fused_mlp import models
from fused_mlp.protos import fused_mlp_pb2 as fm


class Batcher:
    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._queue: asyncio.Queue[tuple[torch.Tensor, asyncio.Future[torch.Tensor]]] = asyncio.Queue()

    async def predict(self, rows: torch.Tensor) -> torch.Tensor:
        future: asyncio.Future[torch.Tensor] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((rows, future))
        return await future

    async def run(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            rows = torch.cat([rows for rows, _ in batch])
            outputs = await asyncio.to_thread(self._forward, rows)
            start = 0
            for part, future in batch:
                if not future.cancelled():
                    future.set_result(outputs[start : start + len(part)])
                start += len(part)

    def _forward(self, rows: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self._module(rows)


class Servicer:
    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher

    async def predict(
        self, request: fm.PredictRequest, context: grpc.aio.ServicerContext
    ) -> fm.PredictResponse:
        rows = np.frombuffer(bytearray(request.input.data), np.float32).reshape(request.input.shape)
        output = await self._batcher.predict(torch.from_numpy(rows))
        tensor = fm.Tensor(shape=output.shape, dtype=fm.FP32, data=output.numpy().tobytes())
        return fm.PredictResponse(output=tensor, model=request.model, request_id=request.request_id)


async def serve(repository: Path, model: str) -> None:
    batcher = Batcher(models.load(repository / model / "1").to_torch().eval())
    server = grpc.aio.server()
    predict = grpc.unary_unary_rpc_method_handler(
        Servicer(batcher).predict, fm.PredictRequest.FromString, fm.PredictResponse.SerializeToString
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("fused_mlp.v1.Inference", {"Predict": predict})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await batcher.run()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
