# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol without its predictions: liveness, metadata, configuration, statistics and the
repository. Loading and unloading are refused unless the settings allow them."""

from __future__ import annotations

import asyncio
from importlib.metadata import version as package_version
from typing import Any

from fused_mlp.kernels import KernelError
from fused_mlp.models import MlpSpec, ModelLoadError
from fused_mlp.protos import open_inference_pb2 as pb
from fused_mlp.service._engine import Action, quote_name
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel, ServedVersion
from fused_mlp.service.errors import (
    Code,
    InvalidInput,
    ModelNotFound,
    NotReady,
    PermissionDenied,
    ServiceError,
)
from fused_mlp.service.fronts.rpc import Call, Rpc, rpcs_of
from fused_mlp.service.handlers.guard import Guard
from fused_mlp.service.handlers.health import Health
from fused_mlp.service.handlers.model_info import WIRE_TYPES
from fused_mlp.service.reload.reloader import Reloader
from fused_mlp.service.settings.settings import Settings

PLATFORM = "fused_mlp"
OPEN = ("ServerLive", "ServerReady", "ServerMetadata")  # these reveal no models
ADMIN = ("RepositoryModelLoad", "RepositoryModelUnload")
EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "statistics")


def rpcs(settings: Settings, catalog: Catalog, health: Health, guard: Guard, reloader: Reloader) -> list[Rpc]:
    async def server_live(_request: Any, _: Call) -> Any:
        return pb.ServerLiveResponse(live=True)

    async def server_ready(_request: Any, _: Call) -> Any:
        return pb.ServerReadyResponse(ready=health.ready)

    async def model_ready(request: Any, _: Call) -> Any:
        try:
            served = catalog.find(request.name, parse_version(request.version))
        except ServiceError:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=health.ready and served.answers)

    async def server_metadata(_request: Any, _: Call) -> Any:
        return pb.ServerMetadataResponse(
            name="fused-mlp", version=package_version("fused-mlp"), extensions=EXTENSIONS
        )

    async def model_metadata(request: Any, _: Call) -> Any:
        return _metadata(catalog.get(request.name), _described(catalog, request))

    async def model_config(request: Any, _: Call) -> Any:
        return pb.ModelConfigResponse(config=_config(_described(catalog, request), settings))

    async def statistics(request: Any, call: Call) -> Any:
        version = parse_version(request.version)
        models = [catalog.get(request.name)] if request.name else catalog.models()
        sees = guard.sees(call)
        versions = [v for m in models if sees(m.name) for v in m.ready if version in (0, v.version)]
        if request.name and not versions:
            raise ModelNotFound(quote_name(request.name), version)
        return pb.ModelStatisticsResponse(model_stats=[model_statistics(v) for v in versions])

    async def index(request: Any, call: Call) -> Any:
        sees = guard.sees(call)
        return pb.RepositoryIndexResponse(
            models=[
                pb.RepositoryIndexResponse.ModelIndex(
                    name=v.model, version=str(v.version), state=v.state, reason=v.reason
                )
                for model in catalog.models()
                if sees(model.name)
                for v in model.versions
                if v.state == "READY" or not request.ready
            ]
        )

    async def load(request: Any, _: Call) -> Any:
        _allow(settings)
        if request.parameters:
            names = ", ".join(map(quote_name, sorted(request.parameters)[:4]))
            raise InvalidInput(
                f"parameters: expected none, got {names}: what is served is what the model repository holds"
            )
        unread = ""
        try:
            unread = await reloader.fetch(_named(request))
            model = await asyncio.to_thread(catalog.load, _named(request))
        except (ModelLoadError, KernelError) as error:
            raise InvalidInput("; ".join(filter(None, (str(error), unread)))) from error
        if not model.complete:
            what = "is served without some of its versions" if model.ready else "cannot be served"
            raise InvalidInput(f"model {model.name!r} {what}: {model.problems}")
        return pb.RepositoryModelLoadResponse(model_name=model.name, isLoaded=True)

    async def unload(request: Any, _: Call) -> Any:
        _allow(settings)
        await asyncio.to_thread(catalog.unload, _named(request))
        return pb.RepositoryModelUnloadResponse(model_name=_named(request), isUnloaded=True)

    served = rpcs_of(
        pb.DESCRIPTOR.services_by_name["GRPCInferenceService"],
        {
            "ServerLive": server_live,
            "ServerReady": server_ready,
            "ModelReady": model_ready,
            "ServerMetadata": server_metadata,
            "ModelMetadata": model_metadata,
            "ModelConfig": model_config,
            "ModelStatistics": statistics,
            "RepositoryIndex": index,
            "RepositoryModelLoad": load,
            "RepositoryModelUnload": unload,
        },
    )
    return [
        rpc if method in OPEN else guard.protect(rpc, Action.admin if method in ADMIN else Action.describe)
        for rpc in served
        for method in (rpc.path.rpartition("/")[2],)
    ]


def parse_version(text: str) -> int:
    """A model_version of this protocol: empty for the default, else a whole number from 1."""
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:19]) < 1 << 63 and len(text) < 20):
        raise InvalidInput(f"model_version: expected a whole number from 1 or nothing, got {text[:40]!r}")
    return int(text)


def _named(request: Any) -> str:
    """The model to load or unload: Triton's clients send it in field 2, KServe's in field 1."""
    name: str = request.model_name or request.repository_name
    return name


def _allow(settings: Settings) -> None:
    if not settings.allow_load:
        raise PermissionDenied(
            "loading and unloading models is off: start the server with FUSED_MLP_ALLOW_LOAD=1"
        )


def _described(catalog: Catalog, request: Any) -> ServedVersion:
    served = catalog.find(request.name, parse_version(request.version))
    if served.spec is None:
        what = "is still loading" if served.state == "LOADING" else "could not be loaded"
        raise NotReady(f"model {served.model!r} version {served.version} {what}")
    return served


def _metadata(model: ServedModel, served: ServedVersion) -> Any:
    spec = served.spec
    assert spec is not None
    tensor = pb.ModelMetadataResponse.TensorMetadata
    return pb.ModelMetadataResponse(
        name=model.name,
        versions=[str(v.version) for v in model.answering],
        platform=PLATFORM,
        inputs=[tensor(name=name, datatype=kind, shape=[-1, *shape]) for name, kind, shape in _inputs(spec)],
        outputs=[
            tensor(name=output.name, datatype="FP32", shape=[-1, width])
            for output, width in zip(spec.outputs, spec.output_widths, strict=True)
        ],
    )


def _inputs(spec: MlpSpec) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, datatype and the shape of a row, the model's own; [in_features] is taken as well. A ragged row may be
    shorter than any: -1."""
    if spec.inputs is None:
        return [("input", "FP32", spec.input_shape or (spec.in_features,))]
    return [(each.name, WIRE_TYPES[each.dtype], (-1,) if each.ragged else each.shape) for each in spec.inputs]


def _config_type(datatype: str) -> Any:
    return pb.DataType.Value("TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}")


def _config(served: ServedVersion, settings: Settings) -> Any:
    spec = served.spec
    assert spec is not None
    return pb.ModelConfig(
        name=served.model,
        platform=PLATFORM,
        backend=PLATFORM,
        version_policy=pb.ModelVersionPolicy(all=pb.ModelVersionPolicy.All()),
        # Triton's meaning: the row dimension is not part of dims below.
        max_batch_size=settings.limits.max_request_rows,
        input=[
            pb.ModelInput(name=name, data_type=_config_type(kind), dims=shape or (1,))
            for name, kind, shape in _inputs(spec)
        ],
        output=[
            pb.ModelOutput(name=output.name, data_type=pb.TYPE_FP32, dims=[width])
            for output, width in zip(spec.outputs, spec.output_widths, strict=True)
        ],
        dynamic_batching=pb.ModelDynamicBatching(
            preferred_batch_size=[settings.max_batch_rows], max_queue_delay_microseconds=settings.max_wait_us
        ),
        instance_group=[
            pb.ModelInstanceGroup(
                name=info.variant,
                count=settings.engine_workers,
                kind=pb.ModelInstanceGroup.KIND_GPU
                if info.device != "cpu"
                else pb.ModelInstanceGroup.KIND_CPU,
            )
            for info in served.kernels
        ],
        default_model_filename="model.safetensors",
        parameters={
            "program": pb.ModelParameter(string_value=spec.summary()),
            "variant": pb.ModelParameter(string_value=served.variant),
            **(
                {"fallback": pb.ModelParameter(string_value=served.fallback.reason)}
                if served.fallback
                else {}
            ),
            **{
                f"kernel.{info.variant}": pb.ModelParameter(string_value=str(info)) for info in served.kernels
            },
        },
    )


def model_statistics(served: ServedVersion) -> Any:
    snapshots = [lane.snapshot() for lane in served.lanes.values()]
    durations = [s.requests.duration for s in snapshots]
    total = sum(d.count for d in durations)
    succeeded = sum(s.requests.codes.get(Code.OK, 0) for s in snapshots)
    ns = _nanoseconds(durations)
    queued = [s.queue_duration for s in snapshots]
    run = sum(
        h.count for h in queued
    )  # requests that reached a kernel; Triton's clients want one count for all phases
    failed_ns = sum(s.requests.failed_ns for s in snapshots)
    return pb.ModelStatistics(
        name=served.model,
        version=str(served.version),
        inference_count=sum(s.batch_rows.sum for s in snapshots),
        execution_count=sum(sum(s.batches.values()) for s in snapshots),
        inference_stats=pb.InferStatistics(
            success=pb.StatisticDuration(count=succeeded, ns=ns - failed_ns),
            fail=pb.StatisticDuration(count=total - succeeded, ns=failed_ns),
            queue=pb.StatisticDuration(count=run, ns=_nanoseconds(queued)),
            compute_input=pb.StatisticDuration(count=run, ns=sum(s.gather_ns for s in snapshots)),
            compute_infer=pb.StatisticDuration(count=run, ns=sum(s.compute_ns for s in snapshots)),
            # Not timed: copying an answer out is a part of encoding it, which `success` covers.
            compute_output=pb.StatisticDuration(count=run, ns=0),
        ),
    )


def _nanoseconds(histograms: list[Any]) -> int:
    return sum(h.sum for h in histograms)
