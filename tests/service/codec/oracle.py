# SPDX-License-Identifier: Apache-2.0
"""What a prediction request of either API says, read by the protobuf runtime: the other opinion on every message that
the codec reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.service import _engine
from fused_mlp.service.arm import Arm, parse_arm

CODECS = {"predict": _engine.PREDICT_CODEC, "infer": _engine.INFER_CODEC}
MESSAGES: dict[str, Any] = {"predict": fm.PredictRequest, "infer": oip.ModelInferRequest}
MOST_DIMENSIONS = 10  # the codec keeps no more


def codec_fields(request: _engine.PredictInput) -> dict[str, Any]:
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
    return {
        "model": request.model,
        **_arm(request.version, ("", "fused", "unfused")[request.variant], request.arm),
        "request_id": request.request_id,
        "shape": list(tensor.shape)[:MOST_DIMENSIONS],
        "dtype": fm.DataType.Name(tensor.dtype).lower() if tensor.dtype else "fp32",
        "data": (np.asarray(tensor.values, "<f4").tobytes() if typed else tensor.data).hex(),
        "typed": typed,
        "outputs": [request.output] if request.output not in ("", "*") else [],
        "all_outputs": request.output == "*",
    }


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

    (tensor,) = request.inputs
    typed = tensor.HasField("contents")
    if not typed:
        (data,) = request.raw_input_contents
    elif tensor.datatype == "FP32":
        data = np.asarray(tensor.contents.fp32_contents, "<f4").tobytes()
    else:
        data = np.asarray(tensor.contents.fp64_contents, "<f8").tobytes()
    return {
        "model": request.model_name,
        **_arm(int(request.model_version or 0), parameter("variant"), parameter("arm")),
        "request_id": request.id,
        "shape": list(tensor.shape)[:MOST_DIMENSIONS],
        "dtype": tensor.datatype.lower(),
        "data": data.hex(),
        "typed": typed,
        "outputs": [output.name for output in request.outputs],
        "all_outputs": not request.outputs,
    }
