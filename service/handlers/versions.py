# SPDX-License-Identifier: Apache-2.0
"""The part of fused_mlp.v1.Admin that loads, unloads, pins and rolls back. Loads run one after the other on the
reloader's thread; a change that needs no load does not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fused_mlp.kernels import KernelError
from fused_mlp.models import ModelLoadError
from fused_mlp.protos import admin_pb2 as pb
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.fronts.rpc import Call
from fused_mlp.service.handlers.audited import caller_name
from fused_mlp.service.handlers.model_info import model_message
from fused_mlp.service.policy.rollout import pins
from fused_mlp.service.reload.reloader import Reloader


def handlers(catalog: Catalog, reloader: Reloader) -> dict[str, Callable[[Any, Call], Awaitable[Any]]]:
    async def change(call: Callable[..., ServedModel], *arguments: object, loads: bool = True) -> ServedModel:
        try:
            return await (reloader.run if loads else asyncio.to_thread)(call, *arguments)
        except (ModelLoadError, KernelError) as error:
            raise InvalidInput(str(error)) from error

    async def load(request: Any, _: Call) -> Any:
        unread = ""
        try:
            unread = await reloader.fetch(request.model)
            model = await reloader.run(catalog.load_changed, request.model)
        except (ModelLoadError, KernelError) as error:
            raise InvalidInput("; ".join(filter(None, (str(error), unread)))) from error
        if not model.complete:
            what = "is served without some of its versions" if model.answering else "cannot be served"
            raise InvalidInput(f"model {model.name!r} {what}: {model.problems}")
        if unread:
            raise InvalidInput(f"model {model.name!r} is served from what was fetched before: {unread}")
        return _answer(model)

    async def unload(request: Any, _: Call) -> Any:
        await reloader.run(catalog.unload, request.model)
        return pb.UnloadModelResponse()

    async def pin(request: Any, call: Call) -> Any:
        return await pin_version(request.model, request.version, call)

    async def pin_version(name: str, version: int, call: Call) -> Any:
        loads = not pins.is_ready(catalog, name, version)
        return kept(await change(pins.pin, catalog, name, version, caller_name(call), loads=loads))

    async def roll_back(request: Any, call: Call) -> Any:
        version = await asyncio.to_thread(pins.version_below, catalog, request.model)
        if version:
            return await pin_version(request.model, version, call)
        return kept(await change(pins.roll_back, catalog, request.model, caller_name(call), loads=False))

    def kept(model: ServedModel) -> pb.ModelAnswer:
        answer, why_not = _answer(model), catalog.policies.not_kept
        answer.kept, answer.not_kept = not why_not, why_not
        return answer

    return {"LoadModel": load, "UnloadModel": unload, "PinVersion": pin, "RollBack": roll_back}


def _answer(model: ServedModel) -> pb.ModelAnswer:
    return pb.ModelAnswer(model=model_message(model, model.versions))
