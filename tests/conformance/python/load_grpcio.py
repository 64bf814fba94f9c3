# SPDX-License-Identifier: Apache-2.0
"""Many Predicts at once with stock grpcio: `load_grpcio.py sync|aio TARGET CALLS AT_ONCE DEADLINE_MS`; prints one JSON
object."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
from collections import Counter

import grpc

from fused_mlp.protos import fused_mlp_pb2 as fm

METHOD = "/fused_mlp.v1.Inference/Predict"
CODECS = {
    "request_serializer": fm.PredictRequest.SerializeToString,
    "response_deserializer": fm.PredictResponse.FromString,
}
failed: Counter[str] = Counter()
texts: list[str] = []


def request(number: int) -> fm.PredictRequest:
    tensor = fm.Tensor(shape=[1, 64], data=bytes(256))
    return fm.PredictRequest(model="digits", request_id=str(number), input=tensor)


def check(answer: fm.PredictResponse, number: int) -> None:
    if answer.request_id != str(number) or len(answer.output.data) != 40:
        failed["WRONG ANSWER"] += 1
        texts.append(str(answer))


def note(error: grpc.RpcError) -> None:
    failed[error.code().name] += 1
    texts.append(error.details() or "")


def run_threads(target: str, calls: int, at_once: int, deadline_s: float) -> None:
    numbers = iter(range(1, calls + 1))  # next() of a range iterator is atomic

    def work() -> None:
        for number in numbers:
            try:
                check(predict(request(number), timeout=deadline_s), number)
            except grpc.RpcError as error:
                note(error)

    with grpc.insecure_channel(target) as channel:
        predict = channel.unary_unary(METHOD, **CODECS)
        workers = [threading.Thread(target=work) for _ in range(at_once)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


async def run_tasks(target: str, calls: int, at_once: int, deadline_s: float) -> None:
    numbers = itertools.islice(itertools.count(1), calls)

    async def work() -> None:
        for number in numbers:
            try:
                check(await predict(request(number), timeout=deadline_s), number)
            except grpc.RpcError as error:
                note(error)

    async with grpc.aio.insecure_channel(target) as channel:
        predict = channel.unary_unary(METHOD, **CODECS)
        await asyncio.gather(*(work() for _ in range(at_once)))


if __name__ == "__main__":
    kind, target = sys.argv[1:3]
    calls, at_once, deadline_ms = map(int, sys.argv[3:])
    if kind == "sync":
        run_threads(target, calls, at_once, deadline_ms / 1e3)
    else:
        asyncio.run(run_tasks(target, calls, at_once, deadline_ms / 1e3))
    ok = calls - failed.total()
    print(json.dumps({"sent": calls, "ok": ok, "failed": failed, "text": texts[-1] if texts else ""}))
