# SPDX-License-Identifier: Apache-2.0
"""The model of all peers of servers.py but baseline.py: the one in the folder PEER_MODEL, in eager torch on one
thread. They run several workers or batches at once, whose threads would contend for the cores."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from fused_mlp import models


class EagerModel:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        mlp = models.load(Path(os.environ["PEER_MODEL"]))
        self.in_features = mlp.spec.in_features
        self._module = mlp.to_torch().eval()

    def predict(self, x: np.ndarray) -> np.ndarray:
        """x: (rows, in_features) float32; the answer: (rows, out_features) float32."""
        with torch.inference_mode():
            y: np.ndarray = self._module(torch.from_numpy(x)).numpy()
            return y
