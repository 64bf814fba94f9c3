# SPDX-License-Identifier: Apache-2.0
"""fused_mlp.v1.Inference without its predictions: ListModels and GetModel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fused_mlp.kernels import KernelInfo
from fused_mlp.models import MlpSpec
from fused_mlp.models.precision_error import PrecisionError
from fused_mlp.models.spec import Softmax
from fused_mlp.models.summary import step_detail
from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.protos.variants import variant_number
from fused_mlp.service._engine import quote_name
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel, ServedVersion
from fused_mlp.service.errors import ModelNotFound
from fused_mlp.service.fronts.rpc import Call, Rpc, rpcs_of


def rpcs(catalog: Catalog) -> list[Rpc]:
    async def list_models(_request: Any, _: Call) -> Any:
        return pb.ListModelsResponse(
            models=[model_message(model, model.versions) for model in catalog.models()]
        )

    async def get_model(request: Any, _: Call) -> Any:
        model = catalog.get(request.model)
        versions = [v for v in model.versions if request.version in (0, v.version)]
        if not versions:
            raise ModelNotFound(quote_name(request.model), request.version)
        answer = model_message(model, versions)
        for message, served in zip(answer.versions, versions, strict=True):
            if served.spec is not None:
                message.steps.extend(_steps(served.spec))
        return pb.GetModelResponse(model=answer)

    service = pb.DESCRIPTOR.services_by_name["Inference"]
    return rpcs_of(service, {"ListModels": list_models, "GetModel": get_model})


def model_message(model: ServedModel, versions: Iterable[ServedVersion]) -> pb.Model:
    return pb.Model(
        name=model.name,
        default_version=model.default.version if model.default else 0,
        versions=[_version(v) for v in versions],
    )


def _version(served: ServedVersion) -> pb.ModelVersion:
    message = pb.ModelVersion(version=served.version, state=served.told_state, reason=served.reason)
    spec = served.spec
    if spec is None:
        return message
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
                for layer in spec.layers or ()
            ],
            output_activation=_output_activation(spec),
            dtype=spec.dtype,
            parameters=spec.parameters,
            labels=spec.labels or (),
            description=spec.description,
            kernels=[_kernel(info) for info in served.kernels],
            example=served.example or (),
            variant=variant_number(served.variant),
            outputs=[
                pb.Output(name=output.name, value=output.value, width=width, squeeze=output.squeeze)
                for output, width in zip(spec.outputs, spec.output_widths, strict=True)
            ],
            input_shape=spec.input_shape or (),
            summary=spec.summary(),
            precision=served.precision,
            precision_error=_precision_error(served.precision_error),
            memory_bytes=served.memory_bytes,
        )
    )
    return message


def _precision_error(error: PrecisionError | None) -> pb.PrecisionError | None:
    return None if error is None else pb.PrecisionError(**error.model_dump(exclude_none=True))


def _output_activation(spec: MlpSpec) -> str:
    """Of a chain; of other programs only the softmax of the first output, if it has one."""
    if spec.layers is not None:
        return spec.output_activation
    last = next((step for step in spec.steps if step.name == spec.outputs[0].value), None)
    return last.op if isinstance(last, Softmax) else "identity"


def _steps(spec: MlpSpec) -> list[pb.Step]:
    return [
        pb.Step(
            name=step.name,
            op=step.op,
            inputs=step.sources,
            width=spec.widths_by_name[step.name],
            detail=step_detail(step),
            weights=step.prefix if step.prefix != step.name else "",
        )
        for step in spec.steps
    ]


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
