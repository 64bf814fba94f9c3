# SPDX-License-Identifier: Apache-2.0
"""fused_mlp.v1.Inference without its predictions: ListModels and GetModel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from fused_mlp.kernels import KernelInfo
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.spec import Input, Softmax
from fused_mlp.models.program.summary import record_name
from fused_mlp.models.weights.mlp import Example
from fused_mlp.models.weights.precision_error import PrecisionError
from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.protos.variants import variant_number
from fused_mlp.service._engine import Action, quote_name
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel, ServedVersion
from fused_mlp.service.errors import ModelNotFound
from fused_mlp.service.fronts.rpc import Call, Rpc, rpcs_of
from fused_mlp.service.handlers.guard import Guard

# Datatypes of the Open Inference Protocol, by our dtypes.
WIRE_TYPES = {
    "float32": "FP32",
    "float64": "FP64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "int64": "INT64",
    "int32": "INT32",
    "int16": "INT16",
    "int8": "INT8",
    "uint8": "UINT8",
    "bool": "BOOL",
    "string": "BYTES",
}


def rpcs(catalog: Catalog, guard: Guard) -> list[Rpc]:
    async def list_models(_request: Any, call: Call) -> Any:
        sees = guard.sees(call)
        return pb.ListModelsResponse(
            models=[model_message(model, model.versions) for model in catalog.models() if sees(model.name)]
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
    served = rpcs_of(service, {"ListModels": list_models, "GetModel": get_model})
    return [guard.protect(rpc, Action.describe) for rpc in served]


def model_message(model: ServedModel, versions: Iterable[ServedVersion]) -> pb.Model:
    return pb.Model(
        name=model.name,
        default_version=model.default.version if model.default else 0,
        versions=[_version(v) for v in versions],
    )


def _version(served: ServedVersion) -> pb.ModelVersion:
    message = pb.ModelVersion(version=served.version, state=served.reported_state, reason=served.reason)
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
            example=served.example if isinstance(served.example, tuple) else (),
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
            inputs=[_input(each, served.example) for each in spec.inputs or ()],
        )
    )
    return message


def _input(each: Input, example: Example | None) -> pb.Input:
    row = example.get(each.name, ()) if isinstance(example, dict) else ()
    return pb.Input(
        name=each.name,
        kind=each.kind,
        datatype=WIRE_TYPES[each.dtype],
        shape=each.shape,
        ragged=each.ragged,
        tables=[field.size for field in each.fields if field.size is not None],
        vocabulary=len(each.vocabulary or ()),
        unknown=each.unknown is not None,
        example=_example(row) if row else None,
    )


def _example(row: Sequence[float | str]) -> pb.Tensor:
    if any(isinstance(value, str) for value in row):
        return pb.Tensor(strings=map(str, row))
    if all(isinstance(value, int) for value in row):
        return pb.Tensor(integers=map(int, row))
    return pb.Tensor(values=map(float, row))


def _precision_error(error: PrecisionError | None) -> pb.PrecisionError | None:
    return None if error is None else pb.PrecisionError(**error.model_dump(exclude_none=True))


def _output_activation(spec: MlpSpec) -> str:
    """The output activation of a chain. Other programs have only the softmax of their first output."""
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
            detail=record_name(spec, step) or step.detail(),
            weights=step.prefix if step.prefix != step.name else "",
        )
        for step in spec.steps
    ]


def _kernel(info: KernelInfo) -> pb.Kernel:
    return pb.Kernel(**asdict(info) | {"variant": variant_number(info.variant)})
