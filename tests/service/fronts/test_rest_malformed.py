# SPDX-License-Identifier: Apache-2.0
"""What the REST port does with requests that are wrong: one clear answer in 4xx, and nothing for the next caller of
the same server."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fused_mlp.service.fronts.selection import native_front_problem
from tests.support.rest import (
    INFER,
    RestClient,
    binary_request,
    exchange,
    json_request,
    post,
    read_all,
    rest_port,
)
from tests.support.server import Server

if problem := native_front_problem():
    pytest.skip(problem, allow_module_level=True)

ROW = (np.arange(64, dtype=np.float32) / 64).reshape(1, 64)
NUMBERS = ",".join(["0"] * 63)
LIMITS = {"receive_timeout_s": 0.3, "max_message_bytes": 1 << 20}


@pytest.fixture(scope="module")
def rest_server() -> Iterator[Server]:
    with Server(front="native", rest_port=0, limits=json.dumps(LIMITS)) as server:
        yield server


@pytest.fixture(scope="module")
def port(rest_server: Server) -> int:
    return rest_port(rest_server)


@pytest.fixture
def rest(port: int) -> Iterator[RestClient]:
    client = RestClient(port)
    yield client
    assert client.infer(json_request(ROW)).status == 200  # on the same connection
    client.close()


def tensor(**changes: object) -> bytes:
    fields = {"name": "input", "shape": [1, 64], "datatype": "FP32", "data": [0] * 64} | changes
    return json.dumps({"inputs": [{k: v for k, v in fields.items() if v is not None}]}).encode()


def with_number(text: str) -> bytes:
    return tensor(data=["x"]).replace(b'"x"', f"{text},{NUMBERS}".encode())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "body: expected JSON"),
        (b"{", "body: expected JSON"),
        (b"[]", "body: expected an object"),
        (b"7", "body: expected a JSON object"),
        (b"null", "body: expected a JSON object"),
        (b"{}", "inputs: expected tensors by name, got none"),
        (b'{"inputs": {}}', "inputs: expected an array, got '{'"),
        (b'{"inputs": [7]}', "inputs: expected an object, got '7'"),
        (tensor() + b"{}", "body: expected one JSON object, got more behind it"),
        (b'{"other": [n, [nullify]]}', "body: expected JSON"),
        (tensor()[:-1], "body: expected JSON"),
        (tensor().replace(b'"name"', b'"name": "input", "name"'), "inputs: expected 'name' once, got it twice"),
        (tensor().replace(b"{", b'{"id": "a", "\\u0069d": "b",', 1), "body: expected 'id' once, got it twice"),
        (tensor().replace(b"{", b'{"x": [1, 2, }],', 1), "body: expected JSON"),
        (tensor().replace(b"{", b'{"x": tru,', 1), "body: expected JSON"),
        (tensor().replace(b"{", b'{"x": "\xff",', 1), "body: expected JSON"),
        (tensor().replace(b"{", b'{"id": 7,', 1), "id: expected a string, got '7'"),
        (tensor().replace(b"{", b'{"x": ' + b"[" * 40 + b"]" * 40 + b",", 1), "at most 32 levels of JSON"),
        (tensor(data=json.loads("[" * 40 + "]" * 40)), "data: expected fewer levels of arrays"),
        (b"[" * 500_000, "body: expected an object"),
        (b'{"inputs":' * 50_000, "expected"),
        (tensor(name="x"), "inputs: expected one tensor named 'input', got 'x'"),
        (tensor(shape=[1, 63]), "shape: expected 64 columns, got 63 in [1, 63]"),
        (tensor(shape=[1.5, 64]), "shape: expected whole numbers, got '1.5'"),
        (tensor(shape=[2**70, 64]), "shape: expected whole numbers"),
        (tensor(shape=[-1, 64]), "shape: expected sizes of at least 1"),
        (tensor(shape=[2**40, 64]), "shape: expected at most 4096 rows"),
        (tensor(datatype="INT8"), "dtype: expected FP32, FP16, BF16 or FP64, got 'INT8'"),
        (tensor(datatype="FP16"), "data: expected binary data for FP16, got numbers"),
        (tensor(data=[0] * 63), "values: expected 64 numbers for [1, 64], got 63"),
        (tensor(data="AAAA"), "data: expected an array, got"),
        (tensor(data=["0"] * 64), "data: expected numbers, got"),
        (tensor(data=[None] * 64), "data: expected numbers, got 'null'"),
        (tensor(data=[True] * 64), "data: expected numbers, got 'true'"),
        (tensor(data=None), "inputs: expected data or binary_data_size, got neither"),
        (tensor(parameters={"binary_data_size": 256}), "inputs: expected data or binary_data_size, got both"),
        (tensor(data=None, parameters={"binary_data_size": 256}), "body: expected 256 bytes of binary data behind"),
        (tensor(data=None, parameters={"binary_data_size": -1}), "binary_data_size: expected a whole number"),
        (with_number("1e39"), "data: expected numbers within FP32, got '1e39'"),
        (with_number("-1e400"), "data: expected numbers, got '-1e400'"),
        (with_number("1" + "0" * 5000), "data: expected numbers, got '1"),
        *((with_number(text), "expected") for text in ("NaN", "nan", "-NaN", "Infinity", "-Infinity", "inf", '"NaN"')),
        *((with_number(text), "expected") for text in ("01", "1.", ".5", "+1", "0x10", "1e", "--1", "1 2", "")),
        (json.dumps(json_request(ROW, parameters={"variant": "half"})).encode(), "expected variant fused or unfused"),
        (json.dumps(json_request(ROW, parameters={"arm": "A B"})).encode(), "parameters: arm: expected a version"),
        (json.dumps(json_request(ROW, outputs=[{"name": "q"}])).encode(), "outputs: expected 'output', got 'q'"),
        (json.dumps(json_request(ROW, outputs=[{"name": "output"}] * 65)).encode(), "outputs: expected at most 64"),
        (b" " * ((1 << 20) - 1) + b"x", "expected"),
    ],
)  # fmt: skip
def test_a_body_that_is_wrong(rest: RestClient, body: bytes, says: str) -> None:
    answer = rest.infer(body)
    assert answer.status == 400
    assert says in answer.error
    assert len(answer.error) < 500


def test_two_tensors(rest: RestClient) -> None:
    two = json_request(ROW)
    two["inputs"] *= 2  # type: ignore[operator]
    assert "expected one tensor named 'input', got 'input', 'input'" in rest.infer(two).error


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/v2/models/nonesuch/infer", 404, "model 'nonesuch' is not served here"),
        ("/v2/models/digits/versions/7/infer", 404, "no version 7"),
        ("/v2/models/digits/versions/x/infer", 400, "model_version: expected a whole number from 1"),
        ("/v2/models/%zz/infer", 400, "expected UTF-8, with two hexadecimal digits"),
        ("/v2/models/%ff/infer", 400, "path: expected UTF-8"),
        ("/v2/models/a%22%0d%0ax/infer", 404, "is not served here"),
        ("/v2/models//infer", 404, "unknown path"),
        ("/v2/models/digits/infer/more", 404, "unknown path"),
        ("/v2/models/" + "x" * 2000 + "/infer", 414, "path: expected at most 1024 bytes"),
    ],
)
def test_a_path_that_is_wrong(rest: RestClient, path: str, status: int, says: str) -> None:
    answer = rest.ask("POST", path, json.dumps(json_request(ROW)))
    assert answer.status == status
    assert says in answer.error


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({"Inference_Header_Content_Length": "99999"}, 400, "expected at most the body's"),
        ({"Inference_Header_Content_Length": "-1"}, 400, "expected a whole number"),
        ({"Inference_Header_Content_Length": "1e3"}, 400, "expected a whole number"),
        ({"Inference_Header_Content_Length": "10"}, 400, "expected"),
        ({"Content_Encoding": "br"}, 415, "content-encoding: expected identity, gzip or deflate"),
        ({"Content_Encoding": "gzip"}, 400, "expected gzip data"),
        ({"X_Request_Timeout_Ms": "soon"}, 400, "x-request-timeout-ms: expected up to 8 digits"),
        ({"X_Fused_Mlp_Arm": "A B"}, 400, "x-fused-mlp-arm: expected"),
    ],
)
def test_a_header_that_is_wrong(rest: RestClient, headers: dict[str, str], status: int, says: str) -> None:
    answer = rest.infer(json_request(ROW), **headers)
    assert answer.status == status
    assert says in answer.error


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v2/models/%zz", "path: expected UTF-8, with two hexadecimal digits after each %"),
        ("/v2/models/%f", "path: expected UTF-8, with two hexadecimal digits after each %"),
        ("/v2/models/%ff/config", "path: expected UTF-8, with two hexadecimal digits after each %"),
    ],
)
def test_a_path_of_python_that_is_wrong(rest: RestClient, path: str, says: str) -> None:
    answer = rest.ask("GET", path)
    assert (answer.status, answer.error) == (400, says)


def test_the_encodings_that_would_do_are_told(rest: RestClient) -> None:
    answer = rest.infer(json_request(ROW), Content_Encoding="br")
    assert answer.headers["accept-encoding"] == "gzip, deflate"
    assert not [name for name in answer.headers if name.startswith("grpc-")]


@pytest.mark.parametrize("size", [0, 100, 257])
def test_bytes_without_any_json_that_are_no_rows(rest: RestClient, size: int) -> None:
    answer = rest.infer(b"x" * size, Inference_Header_Content_Length="0")
    assert answer.status == 400
    assert answer.error == f"body: expected rows of 256 bytes, 64 numbers of FP32, got {size} bytes"


@pytest.mark.parametrize(
    ("twice", "says"),
    [
        (b"Content-Encoding: gzip\r\nContent-Encoding: identity", b"content-encoding: expected identity, gzip"),
        (b"Inference-Header-Content-Length: 0\r\nInference-Header-Content-Length: 5", b"expected a whole number, once"),
    ],
)  # fmt: skip
def test_a_header_that_comes_twice_and_says_how_to_read_the_body(
    port: int, twice: bytes, says: bytes
) -> None:
    """Two readers could take it for two things."""
    got = exchange(port, post(GOOD, twice, b"Connection: close"))
    assert got.startswith(b"HTTP/1.1 4")
    assert says in got


GOOD = json.dumps(json_request(ROW)).encode()
HOST = b"Host: x\r\n"
CHUNK = b"%x\r\n%s\r\n" % (len(GOOD), GOOD)


def chunked(body: bytes, *fields: bytes, version: bytes = b"1.1") -> bytes:
    """A request with this body; `fields` in place of the one that announces chunks."""
    lines = (
        b"POST %s HTTP/%s" % (INFER.encode(), version),
        b"Host: x",
        *(fields or (b"Transfer-Encoding: chunked",)),
    )
    return b"\r\n".join((*lines, b"", body))


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",  # TLS
        b"GARBAGE / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"GET / HTTP/3.7\r\n" + HOST + b"\r\n",
        b"GET /v2 HTTP/1.1\n" + HOST + b"\r\n",  # a lone LF, a lone CR, folded lines
        b"GET /v2 HTTP/1.1\r\nA: b\rC: d\r\n" + HOST + b"\r\n",
        b"GET /v2 HTTP/1.1\r\nA: b\r\n c\r\n" + HOST + b"\r\n",
        b"GET /v2 HTTP/1.1\r\nA : b\r\n" + HOST + b"\r\n",
        b"GET /v2 HTTP/1.1\r\nA: b\x00c\r\n" + HOST + b"\r\n",
        b"GET /v2 HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
        b"GET /v2 HTTP/1.1\r\n" + HOST + b"Host: y\r\n\r\n",
        post(GOOD, b"Content-Length: %d" % (len(GOOD) + 1)),
        post(GOOD, b"Content-Length: %d" % len(GOOD)),
        post(GOOD, b"Transfer-Encoding: chunked"),
        post(GOOD).replace(b"Content-Length: ", b"Content-Length: +"),
        post(GOOD).replace(b"Content-Length: ", b"Content-Length: 0x"),
        post(GOOD).replace(b"Content-Length: ", b"Content-Length: 99999999999999999999"),
        b"GET /v2 HTTP/1.1\r\n" + HOST + b": b\r\n\r\n",
        *(post(GOOD).replace(b"Content-Length:", name) for name in (b"Content-Length :", b"Content-Length\t:")),
        post(GOOD).replace(b"Content-Length: ", b"Content-Length: -"),
        post(GOOD).replace(b"Content-Length: %d" % len(GOOD), b"Content-Length: "),
        post(GOOD).replace(b"Content-Length: %d" % len(GOOD), b"Content-Length: %d, %d" % (len(GOOD), len(GOOD))),
        *(chunked(body) for body in (
            b"zz\r\n", b"5;a=b\r\n", b"1\r\n \r\n" * 300, b"5\r\nabcdefg\r\n", b"-1\r\n", b"+" + CHUNK, b"0x" + CHUNK,
            b" " + CHUNK, b"\r\n" + CHUNK, CHUNK.replace(b"\r\n", b" \r\n"), CHUNK.replace(b"\r", b"", 1),
            b"1" + b"0" * 16 + b"\r\n", CHUNK[:-2], CHUNK[:-2] + b"\n", CHUNK[:-1] + b"\r", CHUNK[:-2] + b"xx",
        )),
        *(chunked(CHUNK + end) for end in (
            b"0\r\n\n", b"0\n\r\n", b"0\n\n", b"0\r\r\n\r\n", b"0;\r\n\r\n", b"0;a\r\n\r\n",  # ends and extensions
            b"0\r\nA: b\r\n\r\n", b"0\r\nA: b\r\n\n", b"0\r\nA: b\r\n c\r\n\r\n", b"0\r\nA: b\n\r\n",  # trailers
            b"0\r\nContent-Length: 9\r\n\r\n", b"0\r\n \r\n\r\n", b"0\r\n\rx",
        )),
        chunked(CHUNK + b"0\r\n\r\n", version=b"1.0"),
        *(chunked(CHUNK + b"0\r\n\r\n", *fields) for fields in (
            [b"Transfer-Encoding: chunked, gzip"], [b"Transfer-Encoding: chunked, chunked"],
            [b"Transfer-Encoding : chunked"], [b"Transfer-Encoding: \x0bchunked"],
            [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
            [b"Transfer-Encoding: chunked", b"Content-Length: 5"],
            [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
        )),
    ],
)  # fmt: skip
def test_bytes_that_are_no_request_end_the_connection(port: int, request_bytes: bytes) -> None:
    """What follows them is never taken for a request: it may be another caller's, through a proxy."""
    got = exchange(port, request_bytes + b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert len(re.findall(rb"HTTP/1.1 \d", got)) == 1
    assert b"connection: close" in got


@pytest.mark.parametrize(
    "codings",
    ["gzip, chunked", ", chunked", "chunked;q=1", "xchunked", '"chunked"', "identity", "gzip", ""],
)  # fmt: skip
def test_transfer_codings_other_than_chunked(port: int, codings: str) -> None:
    """A proxy that decodes them, or ends the body elsewhere, would see other requests than this server."""
    field = f"Transfer-Encoding: {codings}".encode()
    for fields in ([field], [field, b"Transfer-Encoding: chunked"], [field, b"Content-Length: 5"]):
        got = exchange(port, chunked(CHUNK + b"0\r\n\r\n", *fields) + post(GOOD))
        assert got.startswith(b"HTTP/1.1 501 ")
        assert b"transfer-encoding: expected chunked" in got
        assert len(re.findall(rb"HTTP/1.1 \d", got)) == 1


def test_pipelined_requests_of_chunks(port: int) -> None:
    whole = chunked(b"3\r\n%s\r\n%x\r\n%s\r\n" % (GOOD[:3], len(GOOD) - 3, GOOD[3:]) + b"000\r\n\r\n")
    got = exchange(port, whole * 3 + post(GOOD, b"Connection: close"))
    assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"200"] * 4


def test_too_many_headers(port: int) -> None:
    many = b"".join(b"x-%d: y\r\n" % i for i in range(5000))
    got = exchange(port, b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + many + b"\r\n")
    assert got.startswith(b"HTTP/1.1 431 ")


def test_a_body_over_the_limit(port: int) -> None:
    got = exchange(
        port, b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n" % INFER.encode() + b"x" * 99
    )
    assert got.startswith(b"HTTP/1.1 413 ")
    chunk = b"20000\r\n" + b" " * 0x20000 + b"\r\n"
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER.encode()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as wire:
        with suppress(OSError):
            wire.sendall(head + chunk * 9)
        assert read_all(wire).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("begun", "status"),
    [(b"GET /v2 HTT", b"408"), (b"\r\n", b"408"), (post(GOOD)[:-1], b"408"), (post(GOOD)[:70], b"408")],
)
def test_a_request_that_does_not_go_on(port: int, begun: bytes, status: bytes) -> None:
    assert exchange(port, begun).startswith(b"HTTP/1.1 " + status)


def test_a_request_that_is_cut_off_is_forgotten(port: int, rest_server: Server) -> None:
    for size in (10, 60, len(post(GOOD)) - 1):
        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.sendall(post(GOOD)[:size])
    client = RestClient(port)
    assert client.infer(json_request(ROW)).status == 200
    client.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutated_requests_get_an_answer_or_an_end(port: int, data: st.DataObject) -> None:
    body, _ = binary_request(ROW)
    whole = bytearray(
        data.draw(st.sampled_from([post(GOOD), post(body, b"Inference-Header-Content-Length: 110")]))
    )
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    with socket.create_connection(("127.0.0.1", port), timeout=20) as wire:
        wire.sendall(bytes(whole))
        wire.shutdown(socket.SHUT_WR)
        got = read_all(wire)
    assert got == b"" or got.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200", b"HTTP/1.1 5"))
    client = RestClient(port)
    assert client.infer(json_request(ROW)).status == 200
    client.close()
