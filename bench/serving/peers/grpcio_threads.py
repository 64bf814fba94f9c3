# SPDX-License-Identifier: Apache-2.0
"""The usual grpcio server, written by hand: eight threads, each request a forward pass of its own.
`python -m bench.serving.peers.grpcio_threads` prints its port; the model's folder is in PEER_MODEL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

from bench.serving.peers.eager import EagerModel
from bench.serving.peers.limits import THREADS
from fused_mlp.protos import fused_mlp_pb2 as fm


def main() -> None:
    model = EagerModel()

    def predict(request: fm.PredictRequest, _: grpc.ServicerContext) -> fm.PredictResponse:
        x = np.frombuffer(bytearray(request.input.data), np.float32).reshape(request.input.shape)
        y = model.predict(x)
        return fm.PredictResponse(output=fm.Tensor(shape=y.shape, dtype=fm.FP32, data=y.tobytes()))

    handler = grpc.unary_unary_rpc_method_handler(
        predict, fm.PredictRequest.FromString, fm.PredictResponse.SerializeToString
    )
    server = grpc.server(ThreadPoolExecutor(THREADS))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("fused_mlp.v1.Inference", {"Predict": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
