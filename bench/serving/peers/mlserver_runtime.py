# SPDX-License-Identifier: Apache-2.0
"""The model of MLServer: a custom runtime, with the model's folder in PEER_MODEL."""

from __future__ import annotations

import mlserver
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from bench.serving.peers.eager import EagerModel


class Infer(mlserver.MLModel):  # type: ignore[misc, unused-ignore]
    async def load(self) -> bool:
        self._eager = EagerModel()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        y = self._eager.predict(NumpyCodec.decode_input(payload.inputs[0]))
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output(name="output", payload=y)]
        )
