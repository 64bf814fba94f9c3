# SPDX-License-Identifier: Apache-2.0
"""BentoML with JSON, its usual format for arrays, and adaptive batches:
`bentoml serve bench.serving.peers.bentoml_json:Infer`, with the model's folder in PEER_MODEL."""

from __future__ import annotations

from typing import Annotated

import bentoml
import numpy as np
from bentoml.validators import DType

from bench.serving.peers.eager import EagerModel
from bench.serving.peers.limits import MAX_BATCH, MAX_LATENCY_S, WORKERS

Rows = Annotated[np.ndarray, DType("float32")]


@bentoml.service(workers=WORKERS, metrics={"enabled": False}, logging={"access": {"enabled": False}})  # type: ignore[untyped-decorator, unused-ignore]
class Infer:
    def __init__(self) -> None:
        self.model = EagerModel()

    @bentoml.api(  # type: ignore[untyped-decorator, unused-ignore]
        route="/inference", batchable=True, max_batch_size=MAX_BATCH, max_latency_ms=1000 * MAX_LATENCY_S
    )
    def infer(self, rows: Rows) -> Rows:
        return self.model.predict(rows)
