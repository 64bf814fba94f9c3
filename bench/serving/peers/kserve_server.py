# SPDX-License-Identifier: Apache-2.0
"""KServe's Python server, which has no batches: `kserve_server.py MODEL HTTP_PORT GRPC_PORT`, with the model's folder
in PEER_MODEL."""

from __future__ import annotations

import sys
from typing import Any

import kserve
from kserve.protocol.infer_type import InferOutput, InferRequest, InferResponse

from bench.serving.peers.eager import EagerModel


class Infer(kserve.Model):  # type: ignore[misc, unused-ignore]
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._eager = EagerModel()
        self.ready = True

    async def predict(self, payload: InferRequest, *_: Any, **__: Any) -> InferResponse:
        y = self._eager.predict(payload.inputs[0].as_numpy())
        output = InferOutput(name="output", shape=list(y.shape), datatype="FP32")
        output.set_data_from_numpy(y, binary_data=True)
        return InferResponse(response_id=payload.id or "1", model_name=self.name, infer_outputs=[output])


if __name__ == "__main__":
    server = kserve.ModelServer(
        http_port=int(sys.argv[2]), grpc_port=int(sys.argv[3]), access_log_format=None, enable_docs_url=False
    )
    server.start([Infer(sys.argv[1])])
