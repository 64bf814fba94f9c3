"""The part of fused_mlp.v1.Admin that loads, unloads, pins and rolls back, on the reloader's thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fused_mlp.kernels import KernelError
from fused_mlp.models import ModelLoadError
from fused_mlp.protos import admin_pb2 as pb
from fused_mlp.service.catalog import pinning
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.fronts.rpc import Call
from fused_mlp.service.handlers.model_info import model_message
from fused_mlp.service.reload.reloader import Reloader


def handlers(
    catalog: Catalog, reloader: Reloader, caller_of: Callable[[Call], str]
) -> dict[str, Callable[[Any, Call], Awaitable[Any]]]:
    async def change(call: Callable[..., ServedModel], *arguments: object) -> ServedModel:
        try:
            return await reloader.run(call, *arguments)
        except (ModelLoadError, KernelError) as error:
            raise InvalidInput(str(error)) from error

    async def load(request: Any, _: Call) -> Any:
        model = await change(catalog.load_changed, request.model)
        if not model.complete:
            what = "is served without some of its versions" if model.answering else "cannot be served"
            raise InvalidInput(f"model {model.name!r} {what}: {model.problems}")
        return _answer(model)

    async def unload(request: Any, _: Call) -> Any:
        await reloader.run(catalog.unload, request.model)
        return pb.UnloadModelResponse()

    async def pin(request: Any, call: Call) -> Any:
        by = caller_of(call)
        return _answer(await change(pinning.pin, catalog, request.model, request.version, by))

    async def roll_back(request: Any, call: Call) -> Any:
        return _answer(await change(pinning.roll_back, catalog, request.model, caller_of(call)))

    return {"LoadModel": load, "UnloadModel": unload, "PinVersion": pin, "RollBack": roll_back}


def _answer(model: ServedModel) -> pb.ModelAnswer:
    return pb.ModelAnswer(model=model_message(model, model.versions))
