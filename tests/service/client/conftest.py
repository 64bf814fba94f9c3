# SPDX-License-Identifier: Apache-2.0
"""Clients of both kinds, so that one test holds both to account."""

from __future__ import annotations

import asyncio

import pytest

from fused_mlp.service.client import AsyncClient, Client


class BlockingAsyncClient:
    """An AsyncClient driven to completion call by call, so that one test can hold both clients to account."""

    def __init__(self, *args, **kwargs) -> None:
        self._runner = asyncio.Runner()

        async def make() -> AsyncClient:
            return AsyncClient(*args, **kwargs)

        self._client = self._runner.run(make())

    def __getattr__(self, name):
        method = getattr(self._client, name)
        if name == "target":
            return method
        return lambda *args, **kwargs: self._runner.run(method(*args, **kwargs))

    def stream(self, *args, **kwargs):
        stream = self._client.stream(*args, **kwargs)
        try:
            while True:
                try:
                    yield self._runner.run(anext(stream))
                except StopAsyncIteration:
                    return
        finally:
            self._runner.run(stream.aclose())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self._runner.close()


@pytest.fixture(params=[Client, BlockingAsyncClient], ids=["sync", "asyncio"])
def connect(request):
    """Makes clients of either kind and closes them."""
    clients = []

    def make(*args, **kwargs):
        clients.append(request.param(*args, **kwargs))
        return clients[-1]

    yield make
    for client in clients:
        client.__exit__(None, None, None)
