# SPDX-License-Identifier: Apache-2.0
"""Stock grpcio beside the callers: large requests to the big model, requests to the models that are reloaded."""

from __future__ import annotations

import random
import threading
import time

import grpc

from fused_mlp.protos import fused_mlp_pb2 as fm
from tests.conformance.soak.books import Ledger
from tests.conformance.soak.repository import (
    BIG,
    BIG_WIDTH,
    PASSING,
    PASSING_WIDTH,
    RELOADED,
    RELOADED_WIDTH,
    STAYING,
)
from tests.support.peer import PREDICT

DEADLINE_S = 60.0
MIX = (  # model, inputs, most rows, whether it may be unloaded when the request comes
    (BIG, BIG_WIDTH, 256, False),
    (BIG, BIG_WIDTH, 256, False),
    (RELOADED, RELOADED_WIDTH, 16, False),
    (PASSING, PASSING_WIDTH, 64, True),
)


class Neighbour(threading.Thread):
    """One request after the other to one model. Every answer must be OK, or NOT_FOUND of a model that is unloaded."""

    def __init__(self, target: str, until: float, seed: int) -> None:
        super().__init__()
        self._model, self._width, self._most_rows, self._passing = MIX[seed % len(MIX)]
        self._target, self._until = target, until
        self._random = random.Random(seed)
        self.ledger = Ledger()

    def run(self) -> None:
        with grpc.insecure_channel(self._target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            predict = channel.unary_unary(PREDICT, response_deserializer=fm.PredictResponse.FromString)
            while time.monotonic() < self._until and not self.ledger.problems:
                rows = self._random.randint(1, self._most_rows)
                tensor = fm.Tensor(shape=[rows, self._width], data=bytes(4 * rows * self._width))
                message = fm.PredictRequest(model=self._model, input=tensor).SerializeToString()
                self.ledger.calls += 1
                try:
                    self._answered(predict(message, timeout=DEADLINE_S), rows)
                except grpc.RpcError as error:
                    self._failed(error)

    def _answered(self, answer: fm.PredictResponse, rows: int) -> None:
        if answer.output.shape[0] != rows:
            self.ledger.problems.append(f"{self._model}: sent {rows} rows, got {answer.output.shape[0]}")
        if self._model in STAYING:
            self.ledger.sent["OK"] += 1
        else:
            self.ledger.moving += 1

    def _failed(self, error: grpc.RpcError) -> None:
        if self._passing and error.code() is grpc.StatusCode.NOT_FOUND:
            self.ledger.sent["NOT_FOUND"] += 1
        else:
            self.ledger.problems.append(f"{self._model}: {error.code().name}: {error.details()}")
