"""fused_mlp.v1.Inference without its predictions: ListModels and GetModel."""

from __future__ import annotations

from typing import Any

from fused_mlp.kernels import KernelInfo
from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.protos.variants import variant_number
from fused_mlp.service._engine import quote_name
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel, ServedVersion
from fused_mlp.service.errors import ModelNotFound
from fused_mlp.service.fronts.rpc import Call, Rpc, rpcs_of


def rpcs(catalog: Catalog) -> list[Rpc]:
    async def list_models(_request: Any, _: Call) -> Any:
        return pb.ListModelsResponse(models=[_model(model) for model in catalog.models()])

    async def get_model(request: Any, _: Call) -> Any:
        model = catalog.get(request.model)
        versions = tuple(v for v in model.versions if request.version in (0, v.version))
        if not versions:
            raise ModelNotFound(quote_name(request.model), request.version)
        return pb.GetModelResponse(model=_model(model, versions))

    service = pb.DESCRIPTOR.services_by_name["Inference"]
    return rpcs_of(service, {"ListModels": list_models, "GetModel": get_model})


def _model(model: ServedModel, versions: tuple[ServedVersion, ...] | None = None) -> pb.Model:
    return pb.Model(
        name=model.name,
        default_version=model.default.version if model.default else 0,
        versions=[_version(v) for v in (model.versions if versions is None else versions)],
    )


def _version(served: ServedVersion) -> pb.ModelVersion:
    message = pb.ModelVersion(version=served.version, state=served.state, reason=served.reason)
    if served.mlp is None:
        return message
    spec = served.mlp.spec
    message.MergeFrom(
        pb.ModelVersion(
            in_features=spec.in_features,
            out_features=spec.out_features,
            layers=[
                pb.Layer(
                    out_features=layer.out_features,
                    bias=layer.bias,
                    activation=layer.activation,
                    gated=layer.gated,
                    negative_slope=layer.negative_slope,
                )
                for layer in spec.layers
            ],
            output_activation=spec.output_activation,
            dtype=spec.dtype,
            parameters=spec.parameters,
            labels=spec.labels or (),
            description=spec.description,
            kernels=[_kernel(info) for info in served.kernels],
            example=served.mlp.example or (),
            variant=variant_number(served.variant),
        )
    )
    return message


def _kernel(info: KernelInfo) -> pb.Kernel:
    return pb.Kernel(
        variant=variant_number(info.variant),
        backend=info.backend,
        device=info.device,
        strategy=info.strategy,
        isa=info.isa,
        dtype=info.dtype,
        threads=info.threads,
        reason=info.reason,
    )
