# SPDX-License-Identifier: Apache-2.0
"""The model of Triton's Python backend: eager torch over all requests of a batch at once. Runs in Triton's own
interpreter, with the model's folder in PEER_MODEL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as triton

from fused_mlp import models


class TritonPythonModel:
    def initialize(self, _: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.module = models.load(Path(os.environ["PEER_MODEL"])).to_torch().eval()

    def execute(self, requests: list[Any]) -> list[Any]:
        inputs = [triton.get_input_tensor_by_name(request, "input").as_numpy() for request in requests]
        with torch.inference_mode():
            outputs = self.module(torch.from_numpy(np.concatenate(inputs))).numpy()
        answers = np.split(outputs, np.cumsum([len(rows) for rows in inputs])[:-1])
        return [triton.InferenceResponse([triton.Tensor("output", rows)]) for rows in answers]
