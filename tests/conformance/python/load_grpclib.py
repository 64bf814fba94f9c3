# SPDX-License-Identifier: Apache-2.0
"""Many Predicts at once with grpclib: `load_grpclib.py TARGET CALLS AT_ONCE DEADLINE_MS`; prints one JSON object."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.exceptions import GRPCError, StreamTerminatedError

from fused_mlp.protos import fused_mlp_pb2 as fm

METHOD = "/fused_mlp.v1.Inference/Predict"


async def run(target: str, calls: int, at_once: int, deadline_s: float) -> dict[str, object]:
    host, _, port = target.rpartition(":")
    failed: Counter[str] = Counter()
    text = ""
    numbers = iter(range(1, calls + 1))
    tensor = fm.Tensor(shape=[1, 64], data=bytes(256))

    async def work() -> None:
        nonlocal text
        for number in numbers:
            try:
                request = fm.PredictRequest(model="digits", request_id=str(number), input=tensor)
                answer = await predict(request, timeout=deadline_s)
                if answer.request_id != str(number) or len(answer.output.data) != 40:
                    failed["WRONG ANSWER"] += 1
                    text = str(answer)
            except (GRPCError, StreamTerminatedError, OSError) as error:
                failed[error.status.name if isinstance(error, GRPCError) else type(error).__name__] += 1
                text = str(error)

    async with Channel(host, int(port)) as channel:
        predict = UnaryUnaryMethod(channel, METHOD, fm.PredictRequest, fm.PredictResponse)
        await asyncio.gather(*(work() for _ in range(at_once)))
    return {"sent": calls, "ok": calls - failed.total(), "failed": failed, "text": text}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1], *map(int, sys.argv[2:4]), int(sys.argv[4]) / 1e3))))
