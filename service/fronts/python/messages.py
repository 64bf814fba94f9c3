"""Decodes the requests of both APIs and encodes their responses, for the Python front. Shapes are checked by the
engine's own check, which both fronts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.service import _engine
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.handlers.open_inference import parse_version

INPUT, OUTPUT = "input", "output"
VARIANTS = {
    fm.VARIANT_UNSPECIFIED: _engine.Variant.unspecified,
    fm.FUSED: _engine.Variant.fused,
    fm.UNFUSED: _engine.Variant.unfused,
}
VARIANT_NAMES = {"fused": _engine.Variant.fused, "unfused": _engine.Variant.unfused}
PROTO_VARIANTS = {variant: number for number, variant in VARIANTS.items()}
PROTO_DTYPES = {
    _engine.DType.fp32: fm.FP32,
    _engine.DType.fp16: fm.FP16,
    _engine.DType.bf16: fm.BF16,
    _engine.DType.fp64: fm.FP64,
}


@dataclass(frozen=True)
class PredictInput:
    """A decoded request. `typed`: the numbers came one by one, not as raw bytes."""

    model: str
    version: int
    variant: _engine.Variant
    shape: Sequence[int]
    dtype: _engine.DType
    data: bytes
    typed: bool

    def check_rows(self, route: _engine.Route) -> int:
        """How many rows there are; raises when shape, dtype and bytes do not fit each other or the model."""
        widths = (route.in_features, route.max_request_rows)
        if self.typed:
            count = len(self.data) // (8 if self.dtype is _engine.DType.fp64 else 4)
            return _engine.check_values(self.shape, count, *widths)
        return _engine.check_tensor(self.shape, self.dtype, len(self.data), *widths)


def read_predict(request: fm.PredictRequest) -> PredictInput:
    tensor = request.input
    if request.variant not in VARIANTS:
        raise InvalidInput(f"variant: expected FUSED (1) or UNFUSED (2), got {request.variant}")
    if request.version < 0:
        raise InvalidInput(f"version: expected a number from 1, or 0 for the default, got {request.version}")
    if tensor.data and tensor.values:
        raise InvalidInput("input: expected data or values, got both")
    typed = bool(tensor.values)
    dtype = _engine.dtype_from_proto(tensor.dtype)
    if typed and dtype is not _engine.DType.fp32:
        raise InvalidInput(
            f"input: values are FP32, got dtype {fm.DataType.Name(tensor.dtype)}; send data instead"
        )
    return PredictInput(
        model=request.model,
        version=request.version,
        variant=VARIANTS[request.variant],
        shape=tensor.shape,
        dtype=dtype,
        data=np.asarray(tensor.values, np.float32).tobytes() if typed else tensor.data,
        typed=typed,
    )


def write_predict(
    request: fm.PredictRequest, sent: PredictInput, route: _engine.Route, done: _engine.TicketResult
) -> Any:
    tensor = fm.Tensor(shape=[done.rows, route.out_features], dtype=PROTO_DTYPES[sent.dtype])
    if sent.typed:
        tensor.values.extend(np.frombuffer(done.data or b"", np.float32))
    else:
        tensor.data = done.data or b""
    return fm.PredictResponse(
        output=tensor,
        model=route.model,
        version=route.version,
        variant=PROTO_VARIANTS[route.variant],
        strategy=done.strategy,
        timings=fm.Timings(queue_ns=done.queue_ns, compute_ns=done.compute_ns, batch_rows=done.batch_rows),
        request_id=request.request_id,
    )


def read_infer(request: oip.ModelInferRequest) -> PredictInput:
    version = parse_version(request.model_version)
    if len(request.inputs) != 1 or request.inputs[0].name != INPUT:
        names = ", ".join(repr(tensor.name[:40]) for tensor in request.inputs[:4]) or "none"
        raise InvalidInput(f"inputs: expected one tensor named {INPUT!r}, got {names}")
    for output in request.outputs:
        if output.name != OUTPUT:
            raise InvalidInput(f"outputs: expected {OUTPUT!r}, got {output.name[:40]!r}")
    tensor = request.inputs[0]
    dtype = _engine.dtype_from_name(tensor.datatype)
    typed = tensor.HasField("contents")
    if typed and request.raw_input_contents:
        raise InvalidInput("input: expected contents or raw_input_contents, got both")
    if typed:
        data = _typed_contents(tensor.contents, dtype)
    elif len(request.raw_input_contents) == 1:
        data = request.raw_input_contents[0]
    else:
        raise InvalidInput(
            f"raw_input_contents: expected 1 for 1 input, got {len(request.raw_input_contents)}"
        )
    return PredictInput(
        model=request.model_name,
        version=version,
        variant=_requested_variant(request.parameters),
        shape=tensor.shape,
        dtype=dtype,
        data=data,
        typed=typed,
    )


def _requested_variant(parameters: Any) -> _engine.Variant:
    """The parameter `variant`; all other parameters are ignored."""
    name = parameters["variant"].string_param if "variant" in parameters else ""
    if not name:
        return _engine.Variant.unspecified
    if name not in VARIANT_NAMES:
        raise InvalidInput(f"parameters: expected variant fused or unfused, got {_engine.quote_name(name)}")
    return VARIANT_NAMES[name]


def _typed_contents(contents: oip.InferTensorContents, dtype: _engine.DType) -> bytes:
    filled = [field.name for field, _ in contents.ListFields()]
    if dtype is _engine.DType.fp32 and filled in ([], ["fp32_contents"]):
        return np.asarray(contents.fp32_contents, np.float32).tobytes()
    if dtype is _engine.DType.fp64 and filled in ([], ["fp64_contents"]):
        return np.asarray(contents.fp64_contents, np.float64).tobytes()
    fields = {_engine.DType.fp32: "fp32_contents", _engine.DType.fp64: "fp64_contents"}
    expected = fields.get(dtype, "raw_input_contents")
    raise InvalidInput(
        f"contents: expected {expected} for {_engine.dtype_name(dtype)}, got {', '.join(filled) or 'nothing'}"
    )


def write_infer(
    request: oip.ModelInferRequest, sent: PredictInput, route: _engine.Route, done: _engine.TicketResult
) -> Any:
    response = oip.ModelInferResponse(
        model_name=route.model,
        model_version=str(route.version),
        id=request.id,
        outputs=[
            oip.ModelInferResponse.InferOutputTensor(
                name=OUTPUT, datatype=_engine.dtype_name(sent.dtype), shape=[done.rows, route.out_features]
            )
        ],
        raw_output_contents=[done.data or b""],
    )
    response.parameters["variant"].string_param = route.variant.name
    return response
