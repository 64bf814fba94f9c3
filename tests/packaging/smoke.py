# SPDX-License-Identifier: Apache-2.0
"""Uses every kind of call of an installed client: python smoke.py TARGET. Run by the Python of another venv."""

import asyncio
import sys

import numpy as np

from fused_mlp import AsyncClient, Client


def blocking(target: str) -> np.ndarray:
    with Client(target) as client:
        client.ready()
        assert client.health("digits") == "SERVING"
        assert [model.name for model in client.models()] == ["digits"]
        x = np.asarray(client.model("digits").version().example, np.float32)
        output = client.predict("digits", x).output
        assert output.shape == (10,)
        streamed = [item.unwrap().output for item in client.stream("digits", [x, x])]
        assert all((each == output).all() for each in streamed)
        assert len(streamed) == 2
        return x


async def awaited(target: str, x: np.ndarray) -> None:
    async with AsyncClient(target) as client:
        assert (await client.predict("digits", x)).output.shape == (10,)
        assert await client.health() == "SERVING"


if __name__ == "__main__":
    asyncio.run(awaited(sys.argv[1], blocking(sys.argv[1])))
    print("ok")
