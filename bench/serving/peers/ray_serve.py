# SPDX-License-Identifier: Apache-2.0
"""Ray Serve behind its gRPC proxy, with `serve.batch`: `ray_serve.py GRPC_PORT HTTP_PORT` prints the first when it
answers. With the model's folder in PEER_MODEL."""

from __future__ import annotations

import signal
import sys
from typing import Any

import grpc
import numpy as np
import ray
from ray import serve

from bench.serving.peers.limits import MAX_BATCH, MAX_ONGOING, MAX_WAIT_S
from fused_mlp.protos import fused_mlp_pb2 as fm

START_TIMEOUT_S = 90
# Ray replaces 127.0.0.1 by an address of the network.
ADDRESS = "127.0.0.2"


def add_servicer(servicer: Any, server: Any) -> None:
    """Stands for the code that grpcio-tools would generate."""
    predict = grpc.unary_unary_rpc_method_handler(
        servicer.Predict, fm.PredictRequest.FromString, fm.PredictResponse.SerializeToString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("fused_mlp.v1.Inference", {"Predict": predict}),)
    )


class Infer:
    def __init__(self) -> None:
        from bench.serving.peers.eager import EagerModel  # not in the proxy, which imports this module too

        self._model = EagerModel()

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=MAX_WAIT_S)  # type: ignore[untyped-decorator, unused-ignore]
    async def _batch(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        return list(self._model.predict(np.stack(rows)))

    async def Predict(self, request: fm.PredictRequest) -> fm.PredictResponse:  # noqa: N802 - the name of the RPC
        y = await self._batch(np.frombuffer(request.input.data, np.float32))
        return fm.PredictResponse(output=fm.Tensor(shape=(1, len(y)), dtype=fm.FP32, data=y.tobytes()))


def main(grpc_port: int, http_port: int) -> None:
    signal.alarm(START_TIMEOUT_S)  # Ray waits forever for a replica that it cannot place
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _node_ip_address=ADDRESS)
    serve.start(
        http_options={"host": "127.0.0.1", "port": http_port},
        grpc_options={
            "port": grpc_port,
            "grpc_servicer_functions": ["bench.serving.peers.ray_serve.add_servicer"],
        },
        logging_config={"enable_access_log": False},
    )
    deployment = serve.deployment(Infer, num_replicas=1, max_ongoing_requests=MAX_ONGOING)
    serve.run(deployment.bind())
    signal.alarm(0)
    print(grpc_port, flush=True)
    signal.pause()


if __name__ == "__main__":
    # Not as __main__, which the proxy and the replica could not import.
    from bench.serving.peers import ray_serve

    ray_serve.main(int(sys.argv[1]), int(sys.argv[2]))
