# SPDX-License-Identifier: Apache-2.0
"""The model of Triton's Python backend: eager torch over all requests of a batch at once. Runs in Triton's own
interpreter, with the model's folder in PEER_MODEL."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from bench.serving.peers.eager import EagerModel


class TritonPythonModel:
    def initialize(self, _: dict[str, Any]) -> None:
        self._model = EagerModel()

    def execute(self, requests: list[Any]) -> list[Any]:
        inputs = [triton.get_input_tensor_by_name(request, "input").as_numpy() for request in requests]
        outputs = self._model.predict(np.concatenate(inputs))
        answers = np.split(outputs, np.cumsum([len(rows) for rows in inputs])[:-1])
        return [triton.InferenceResponse([triton.Tensor("output", rows)]) for rows in answers]
