# SPDX-License-Identifier: Apache-2.0
"""What a prediction request of either API says, read by the protobuf runtime: the other opinion on every message that
the codec reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.service import _engine
from fused_mlp.service.policy.arm import Arm, parse_arm

CODECS = {"predict": _engine.PREDICT_CODEC, "infer": _engine.INFER_CODEC}
MESSAGES: dict[str, Any] = {"predict": fm.PredictRequest, "infer": oip.ModelInferRequest}
MAX_DIMENSIONS = 10  # the codec keeps no more


def codec_fields(request: _engine.PredictInput) -> dict[str, Any]:
    fields = _codec_fields(request)
    return _without_tensor(fields, request.inputs) if request.inputs else fields


def _without_tensor(fields: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Of a request with named tensors, which test_named_inputs reads."""
    kept = {name: value for name, value in fields.items() if name not in ("shape", "dtype", "data", "typed")}
    return {**kept, "inputs": names}


def _codec_fields(request: _engine.PredictInput) -> dict[str, Any]:
    return {
        "model": request.model,
        "version": request.version,
        "variant": request.variant.name,
        "label": request.label,
        "request_id": request.request_id,
        "shape": request.shape,
        "dtype": request.dtype.name,
        "data": request.data.hex(),
        "typed": request.typed,
        "outputs": request.outputs,
        "all_outputs": request.all_outputs,
    }


def protobuf_fields(api: str, message: bytes) -> dict[str, Any]:
    """The same fields. Raises DecodeError; only for requests in which the codec finds nothing wrong."""
    request = MESSAGES[api].FromString(message)
    return _predict_fields(request) if api == "predict" else _infer_fields(request)


def _predict_fields(request: fm.PredictRequest) -> dict[str, Any]:
    tensor = request.input
    typed = len(tensor.values) != 0
    fields = {
        "model": request.model,
        **_arm(request.version, ("", "fused", "unfused")[request.variant], request.arm),
        "request_id": request.request_id,
        "shape": list(tensor.shape)[:MAX_DIMENSIONS],
        "dtype": fm.DataType.Name(tensor.dtype).lower() if tensor.dtype else "fp32",
        "data": (np.asarray(tensor.values, "<f4").tobytes() if typed else tensor.data).hex(),
        "typed": typed,
        "outputs": [request.output] if request.output not in ("", "*") else [],
        "all_outputs": request.output == "*",
    }
    return _without_tensor(fields, [each.name for each in request.inputs]) if request.inputs else fields


def _arm(version: int, variant: str, name: str) -> dict[str, Any]:
    """`name`: of an arm, in place of both."""
    arm = parse_arm(name) if name else Arm()
    number = int(arm.version) if arm.version.isdigit() else 0
    label = arm.version if arm.version and not number else ""
    return {
        "version": version or number,
        "variant": variant or arm.variant or "unspecified",
        "label": label,
    }


def _infer_fields(request: oip.ModelInferRequest) -> dict[str, Any]:
    def parameter(name: str) -> str:
        return request.parameters[name].string_param if name in request.parameters else ""

    names = [each.name for each in request.inputs]
    floats = all(each.datatype in ("FP32", "FP16", "BF16", "FP64") for each in request.inputs)
    tensor = request.inputs[0]
    typed = tensor.HasField("contents")
    if not typed:
        data = b"".join(request.raw_input_contents)
    elif tensor.datatype == "FP32":
        data = np.asarray(tensor.contents.fp32_contents, "<f4").tobytes()
    else:
        data = np.asarray(tensor.contents.fp64_contents, "<f8").tobytes()
    fields = {
        "model": request.model_name,
        **_arm(int(request.model_version or 0), parameter("variant"), parameter("arm")),
        "request_id": request.id,
        "shape": list(tensor.shape)[:MAX_DIMENSIONS],
        "dtype": tensor.datatype.lower(),
        "data": data.hex(),
        "typed": typed,
        "outputs": [output.name for output in request.outputs],
        "all_outputs": not request.outputs,
    }
    return fields if floats and names == ["input"] else _without_tensor(fields, names)
