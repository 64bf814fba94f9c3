# SPDX-License-Identifier: Apache-2.0
"""Seeds for the fuzzers: good sessions and messages to start from. `python seeds.py FOLDER` writes
FOLDER/connection, FOLDER/session, FOLDER/decoders and FOLDER/rest; run from the repository's root, where tests and
protos are."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import hpack
from hyperframe.frame import (
    DataFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip

ROW = bytes(256)


def framed(message: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


def predict(**fields: Any) -> bytes:
    tensor = fm.Tensor(shape=[1, 64], data=ROW)
    default: dict[str, Any] = {"model": "digits", "input": tensor}
    return bytes(fm.PredictRequest(**{**default, **fields}).SerializeToString())


def infer(**fields: Any) -> bytes:
    tensor = oip.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[1, 64])
    default: dict[str, Any] = {"model_name": "digits", "inputs": [tensor], "raw_input_contents": [ROW]}
    return bytes(oip.ModelInferRequest(**{**default, **fields}).SerializeToString())


def ranker() -> dict[str, tuple[str, list[int], bytes, list[Any]]]:
    """The inputs of the toy: datatype, shape, bytes, values."""
    floats = bytes(4 * 21)
    return {
        "x": ("FP32", [1, 21], floats, [0.0] * 21),
        "word": ("BYTES", [1], b"\x02\0\0\0fr", ["fr"]),
        "bag": ("INT16", [1, 3], b"\x01\0\xff\xff\x63\0", [1, -1, 99]),
        "time": ("INT64", [1], (1 << 40).to_bytes(8, "little"), [1 << 40]),
    }


def call(path: str, body: bytes, *extra: tuple[str, str], stream: int = 1) -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
    fields += [("content-type", "application/grpc"), ("te", "trailers"), *extra]
    head = HeadersFrame(stream, hpack.Encoder().encode(fields), flags=["END_HEADERS"])
    return bytes(head.serialize() + DataFrame(stream, body, flags=["END_STREAM"]).serialize())


def connections() -> list[bytes]:
    inference, triton = "/fused_mlp.v1.Inference/", "/inference.GRPCInferenceService/"
    sessions = [
        call(inference + "Predict", framed(predict(request_id="a"))),
        call(inference + "Predict", framed(predict(variant=2)), ("grpc-timeout", "5S")),
        call(inference + "Predict", framed(gzip.compress(predict()), 1), ("grpc-encoding", "gzip")),
        call(inference + "PredictStream", framed(predict()) * 3 + framed(predict(model="no"))),
        call(triton + "ModelInfer", framed(infer())),
        call(triton + "ModelStreamInfer", framed(infer(id="x")) * 2),
        call("/grpc.health.v1.Health/Check", framed(b""), ("x-bin", "AAEC")),
        call("/s.S/Stream", framed(b"one") + framed(b"two")),
        call("/no/Such", b""),
        call(inference + "PredictStream", framed(predict())) + RstStreamFrame(1, 8).serialize(),
        SettingsFrame(0, {4: 0}).serialize() + call(inference + "Predict", framed(predict())),
        PingFrame(0, b"12345678").serialize() + WindowUpdateFrame(0, 1000).serialize(),
    ]
    # The first byte: preface before it; whole, or in small pieces.
    return [bytes([choice]) + session for session in sessions for choice in (1, 0x1F, 0x81)]


def messages() -> list[bytes]:
    values = fm.Tensor(values=[0.5] * 64)
    contents = oip.InferTensorContents(fp64_contents=[0.5] * 64)
    typed = oip.ModelInferRequest.InferInputTensor(
        name="input", datatype="FP64", shape=[64], contents=contents
    )
    numbers = {"FP32": fm.FP32, "BYTES": fm.BYTES, "INT64": fm.INT64, "INT16": fm.INT32}
    fields = {"FP32": "values", "BYTES": "strings", "INT64": "integers", "INT16": "integers"}
    repeated = {"FP32": "fp32_contents", "BYTES": "bytes_contents", "INT64": "int64_contents"}
    named, typed_by_hand, raw, contained, many, many_raw, many_data = [], [], [], [], [], [], []
    for name, (datatype, shape, data, given) in ranker().items():
        elements = b"\x01\0\0\0" * 3 if datatype == "INT16" else data
        tensor = fm.Tensor(shape=shape, dtype=numbers[datatype], data=elements)
        named.append(fm.NamedTensor(name=name, tensor=tensor))
        times = 1 if name in ("x", "word") else 3  # rows beside those that are shared
        rows = fm.Tensor(shape=[times, *shape[1:]], dtype=numbers[datatype], data=elements * times)
        many.append(fm.NamedTensor(name=name, tensor=rows))
        many_raw.append(
            oip.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=rows.shape)
        )
        many_data.append(data * times)
        by_hand = fm.Tensor(shape=shape)
        getattr(by_hand, fields[datatype]).extend(given)
        typed_by_hand.append(fm.NamedTensor(name=name, tensor=by_hand))
        wire = oip.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
        raw.append(wire)
        words = [each.encode() if isinstance(each, str) else each for each in given]
        typed_wire = oip.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
        getattr(typed_wire.contents, repeated.get(datatype, "int_contents")).extend(words)
        contained.append(typed_wire)
    heads = [oip.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in ("v", "pi")]
    return [
        b"\x00" + predict(),
        b"\x00" + predict(input=values, version=1),
        b"\x00" + predict(model="heads", input=fm.Tensor(shape=[1, 1, 8, 8], data=ROW), output="*"),
        b"\x00" + predict(model="heads", output="v"),
        b"\x00" + predict(model="ranker", input=None, inputs=named),
        b"\x00" + predict(model="ranker", input=None, inputs=typed_by_hand),
        b"\x01"
        + infer(model_name="ranker", inputs=raw, raw_input_contents=[e[2] for e in ranker().values()]),
        b"\x00" + predict(model="ranker", input=None, inputs=many, shared=["x", "word"], top_k=1, ids="time"),
        b"\x01"
        + infer(
            model_name="ranker",
            inputs=many_raw,
            raw_input_contents=many_data,
            parameters={
                "shared": oip.InferParameter(bool_param=True),
                "top_k": oip.InferParameter(int64_param=2),
                "min_score": oip.InferParameter(string_param="-1e9"),
            },
        ),
        b"\x01" + infer(model_name="ranker", inputs=contained, raw_input_contents=[]),
        b"\x01" + infer(),
        b"\x01" + infer(model_name="heads", outputs=heads),
        b"\x01" + infer(inputs=[typed], raw_input_contents=[], model_version="1"),
        b"\x02" + framed(predict()) + framed(gzip.compress(predict()), 1),
        b"\x1e" + framed(predict()),
        b"\x0399999999H",
        b"\x03AAECAw==",
    ]


def sessions() -> list[bytes]:
    """Actions of fuzz_session.cpp, three bytes each."""
    shut, stream, gzip_stream = b"\x04\x00\x00", b"\x00\x02\x00", b"\x00\x12\x00"
    empty, good, bombs, unfinished = (bytes([2, 0, body]) for body in (0, 1, 2, 6))
    return [
        shut + (stream + good * 10 + empty * 60) * 4,  # held messages, then the end
        shut + stream + good * 40 + b"\x05\x00\x01" * 30 + b"\x05\x80\xff\x05\x00\xff",  # windows of a byte
        gzip_stream + bombs * 10 + unfinished,
        (b"\x00\x10\x00" + b"\x02\x01\x02" + b"\x00\x00\x00" + unfinished) * 8,  # big buffers, small messages
        b"\x00\x08\x01" + b"\x00\x08\xfc" * 20,  # metadata by reference
        b"\x06\x00\x05" + b"\x07\x00\xff" * 6 + b"\x07\x01\xff",  # a block in pieces
        stream + good * 10 + b"\x03\x00\x00" * 3 + b"\x88\x00\x00\x80\x02\x00" + b"\x82\x00\x01" * 30,
        b"\x00\x04\x00" * 20 + b"\x0b\x00\x07" + b"\x0b\x01\x07",  # Python is late
        shut + stream + empty,  # work for several more visits when the peer has gone
    ]


def rest() -> list[bytes]:
    tensor = {"name": "input", "shape": [1, 64], "datatype": "FP32"}
    numbers = tensor | {"data": [[0.1, -2.5e-3, 1e-45, 16777217] * 16]}
    body = json.dumps({"id": "a", "inputs": [numbers], "outputs": [{"name": "v"}]}).encode()
    head = json.dumps(
        {
            "inputs": [tensor | {"parameters": {"binary_data_size": 256}}],
            "outputs": [{"name": "pi", "parameters": {"binary_data": True}}],
            "parameters": {"binary_data_output": False, "arm": "1/fused"},
        }
    ).encode()
    head += b" " * (-len(head) % 8)
    ids = [
        {"name": name, "datatype": datatype, "shape": shape, "data": given}
        for name, (datatype, shape, _, given) in ranker().items()
    ]
    named = json.dumps({"inputs": ids, "parameters": {"shared": ["x"], "top_k": 1, "min_score": 0}}).encode()
    sizes, packed = (len(head) + 256, len(head), head), gzip.compress(body)
    post = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: a\r\n"
    sessions = [
        post + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n",
        post + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body),
        post + b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n%s" % sizes + ROW,
        post + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed,
        post + b"Content-Length: 256\r\nInference-Header-Content-Length: 0\r\n\r\n" + ROW,
        b"GET http://a/v2?b=c HTTP/1.1\r\nHost: a\r\n\r\n",
        post + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"OPTIONS /v2 HTTP/1.1\r\nHost: a\r\nOrigin: https://a.example\r\n"
        b"Access-Control-Request-Method: GET\r\n\r\n",
        b"HEAD /v2/models/a%20b/versions/7 HTTP/1.0\r\nX-Request-Timeout-Ms: 5\r\n\r\n" * 3,
    ]  # fmt: skip
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/v2/models/heads/infer"),
    ]
    block = HeadersFrame(1, hpack.Encoder().encode(fields), flags=["END_HEADERS"]).serialize()
    http2 = block + DataFrame(1, body, flags=["END_STREAM"]).serialize()
    return [
        *(bytes([choice]) + session for session in sessions for choice in (0, 0x3A, 0x82)),
        *(bytes([choice]) + http2 for choice in (1, 0x83)),
        b"\x04" + body,
        b"\x06" + named,
        b"\x04" + json.dumps(json.loads(body) | {"parameters": None}, sort_keys=True).encode(),
        b"\xfc" + ROW,
        bytes([len(head) // 8 * 8 | 4]) + head + ROW if len(head) < 248 else b"\x04" + head,
    ]


def write(folder: Path, seeds: list[bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(seeds):
        (folder / f"seed-{index:02}").write_bytes(seed)


if __name__ == "__main__":
    write(Path(sys.argv[1]) / "connection", connections())
    write(Path(sys.argv[1]) / "session", sessions())
    write(Path(sys.argv[1]) / "decoders", messages())
    write(Path(sys.argv[1]) / "rest", rest())
