# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol over REST: what each path answers, in JSON and with binary tensors, over HTTP/1.1 and
HTTP/2."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fused_mlp.service.client import Client
from fused_mlp.service.fronts.selection import native_front_problem
from tests.support.puppet import PuppetService
from tests.support.rest import RestClient, binary_request, json_request, post, read_until, rest_port
from tests.support.server import Server, run_to_exit

if problem := native_front_problem():
    pytest.skip(problem, allow_module_level=True)

ROW = (np.arange(64, dtype=np.float32) / 64).reshape(1, 64)
ORIGIN = "https://a.example"


@pytest.fixture(scope="module")
def rest_server() -> Iterator[Server]:
    with Server(
        front="native", rest_port=0, allow_override=1, cors_origins=f"{ORIGIN}, https://b.example"
    ) as server:
        yield server


@pytest.fixture
def rest(rest_server: Server) -> Iterator[RestClient]:
    client = RestClient(rest_port(rest_server))
    yield client
    client.close()


@pytest.fixture(scope="module")
def expected(rest_server: Server) -> np.ndarray:
    """What gRPC answers: (1, 10) float32."""
    with Client(rest_server.target) as client:
        return np.asarray(client.predict("digits", ROW).output)


def test_server_and_model_say_what_they_are(rest: RestClient) -> None:
    assert rest.ask("GET", "/v2").json["name"] == "fused-mlp"
    assert rest.ask("GET", "/v2/health/live").status == 200
    assert rest.ask("GET", "/v2/health/ready").json == {"ready": True}
    for path in ("/v2/models/digits", "/v2/models/digits/versions/1", "/v2/models/%64igits"):
        metadata = rest.ask("GET", path).json
        assert (metadata["name"], metadata["versions"]) == ("digits", ["1"])
        assert metadata["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 64]}]
    assert rest.ask("GET", "/v2/models/digits/ready").status == 200
    assert rest.ask("GET", "/v2/models/nonesuch/ready").status == 503
    config = rest.ask("GET", "/v2/models/digits/config").json
    assert (config["name"], config["input"][0]["data_type"]) == ("digits", "TYPE_FP32")
    (index,) = rest.ask("POST", "/v2/repository/index", '{"ready": true}').json
    assert (index["name"], index["state"]) == ("digits", "READY")


def test_statistics_count_what_came_over_rest(rest: RestClient, rest_server: Server) -> None:
    before = rest_server.metric("fused_mlp_requests_total", code="OK")
    rest.infer(json_request(ROW))
    assert rest_server.metric("fused_mlp_requests_total", code="OK") == before + 1
    for path in ("/v2/models/digits/stats", "/v2/models/stats"):
        (stats,) = rest.ask("GET", path).json["model_stats"]
        assert stats["inference_stats"]["success"]["count"] >= 1


def test_docs_need_nothing_from_elsewhere(rest: RestClient) -> None:
    page = rest.ask("GET", "/docs")
    assert page.headers["content-type"] == "text/html"
    assert b"http://" not in page.body
    assert b"https://" not in page.body
    paths = rest.ask("GET", "/openapi.json").json["paths"]
    assert "/v2/models/{model}/infer" in paths
    for path, verbs in paths.items():  # none is made up
        for verb in verbs:
            asked = path.replace("{model}", "digits").replace("{version}", "1")
            answer = rest.ask(verb.upper(), asked, "{}" if verb == "post" else None)
            assert answer.status in ((400, 403) if "infer" in path or "load" in path else (200,)), path


@pytest.mark.parametrize("path", ["/v2/models/digits/infer", "/v2/models/digits/versions/1/infer"])
def test_json_in_json_out(rest: RestClient, expected: np.ndarray, path: str) -> None:
    answer = rest.ask(
        "POST", path, json.dumps(json_request(ROW, id="seven", parameters={"timeout": 5, "x": [{}]}))
    )
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["id"] == "seven"
    assert (answer.json["model_name"], answer.json["model_version"]) == ("digits", "1")
    (output,) = answer.json["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("output", "FP32", [1, 10])
    assert np.array_equal(np.array(output["data"], np.float32).reshape(1, 10), expected)


def test_flat_nested_and_escaped_json_mean_the_same(rest: RestClient, expected: np.ndarray) -> None:
    flat = json_request(ROW) | {"outputs": [{"name": "output"}]}
    flat["inputs"][0]["data"] = ROW.ravel().tolist()  # type: ignore[index]
    escaped = json.dumps(flat).replace('"name"', '"n\\u0061me"').replace("output", "outp\\u0075t")
    for body in (json.dumps(flat, indent=3), escaped, "\ufeff"[:0] + json.dumps(flat)):
        data = rest.infer(body.encode()).json["outputs"][0]["data"]
        assert np.array_equal(np.array(data, np.float32), expected[0])


def test_binary_tensors(rest: RestClient, expected: np.ndarray) -> None:
    body, headers = binary_request(ROW, outputs=[{"name": "output", "parameters": {"binary_data": True}}])
    answer = rest.infer(body, **headers)
    assert answer.headers["content-type"] == "application/octet-stream"
    size = int(answer.headers["inference-header-content-length"])
    (output,) = json.loads(answer.body[:size])["outputs"]
    assert output["parameters"] == {"binary_data_size": 40}
    assert answer.body[size:] == expected.tobytes()
    body, headers = binary_request(ROW)  # bytes in, numbers out
    assert np.array_equal(
        np.array(rest.infer(body, **headers).json["outputs"][0]["data"], np.float32), expected[0]
    )


def test_an_output_says_for_itself_whether_it_comes_as_bytes(rest: RestClient, expected: np.ndarray) -> None:
    """binary_data of an output overrides binary_data_output of the request, whichever comes first."""
    outputs = {"outputs": [{"name": "output", "parameters": {"binary_data": False}}]}
    all_bytes = {"parameters": {"binary_data_output": True}}
    for more in (outputs | all_bytes, all_bytes | outputs):
        answer = rest.infer(json_request(ROW, **more))
        assert np.array_equal(np.array(answer.json["outputs"][0]["data"], np.float32), expected[0])
    named = rest.infer(json_request(ROW, **all_bytes, outputs=[{"name": "output"}]))
    assert named.body.endswith(expected.tobytes())


def test_bytes_without_any_json(rest: RestClient, expected: np.ndarray) -> None:
    """Triton's raw binary request: the body is the tensor, and its size tells the rows."""
    for rows in (1, 3):
        answer = rest.infer(np.repeat(ROW, rows, 0).tobytes(), Inference_Header_Content_Length="0")
        size = int(answer.headers["inference-header-content-length"])
        (output,) = json.loads(answer.body[:size])["outputs"]
        assert (output["datatype"], output["shape"]) == ("FP32", [rows, 10])
        assert answer.body[size:] == np.repeat(expected, rows, 0).tobytes()


def test_fields_that_are_null_are_fields_that_are_missing(rest: RestClient, expected: np.ndarray) -> None:
    """As clients send them that write whole objects out, such as pydantic models."""
    body = json_request(ROW, id=None, parameters=None, outputs=None)
    body["inputs"][0]["parameters"] = None  # type: ignore[index]
    answer = rest.infer(body)
    assert "id" not in answer.json
    assert np.array_equal(np.array(answer.json["outputs"][0]["data"], np.float32), expected[0])


def test_long_answers_are_written_beside_the_loop() -> None:
    """Printing numbers takes longer than computing them: other connections of the loop do not wait for it."""

    def writers(server: Server) -> int:
        tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
        return [(task / "comm").read_text().strip() for task in tasks].count("mlp-codec")

    with Server(front="native", rest_port=0, front_loops=1) as server:
        client = RestClient(rest_port(server))
        rows = np.random.default_rng(0).random((1000, 64), np.float32)
        body, headers = binary_request(rows, parameters={"binary_data_output": True})
        exact = client.infer(body, **headers).body[-40_000:]
        client.infer(json_request(rows[:2]))
        assert writers(server) == 0
        body, headers = binary_request(rows)
        numbers = client.infer(body, **headers).json["outputs"][0]["data"]
        assert np.array(numbers, np.float32).tobytes() == exact
        assert writers(server) == 1
        client.close()


@pytest.mark.parametrize("kind", ["FP32", "FP64"])
def test_keys_in_any_order(rest: RestClient, kind: str) -> None:
    """Many writers sort them, and "data" comes before "datatype"."""
    body = json_request(ROW)
    body["inputs"][0]["datatype"] = kind  # type: ignore[index]
    in_order = rest.infer(body)
    assert in_order.status == 200
    assert rest.infer(json.dumps(body, sort_keys=True).encode()).body == in_order.body
    assert (
        rest.infer(json.dumps(body, sort_keys=True).replace('data"', 'd\\u0061ta"').encode()).body
        == in_order.body
    )


@pytest.mark.parametrize(("dtype", "kind"), [(np.float16, "FP16"), (np.float64, "FP64")])
def test_other_dtypes(rest: RestClient, expected: np.ndarray, dtype: type, kind: str) -> None:
    body, headers = binary_request(ROW.astype(dtype), kind, parameters={"binary_data_output": True})
    answer = rest.infer(body, **headers)
    output = np.frombuffer(answer.body[int(answer.headers["inference-header-content-length"]) :], dtype)
    np.testing.assert_allclose(output, expected[0], atol=1e-2 if kind == "FP16" else 1e-7)
    body, headers = binary_request(ROW.astype(dtype), kind)
    assert np.array_equal(np.array(rest.infer(body, **headers).json["outputs"][0]["data"], dtype), output)


def test_float32_survives_the_way_in_and_out_exactly(rest_server: Server) -> None:
    """Each number, printed in full or in as few digits as it needs, reaches the kernel as the float that it is nearest
    to: the answers equal those of its bytes."""
    random = np.random.default_rng(0)
    rows = random.integers(0, 2**32, (100, 64), np.uint64).astype(np.uint32).view(np.float32)
    rows = np.where(np.isfinite(rows) & (abs(rows) < 1e30), rows, np.float32(1e-40))
    client = RestClient(rest_port(rest_server))
    for digits in (9, 17, 60):
        text = ",".join(f"{value:.{digits}g}" for value in rows.ravel().astype(np.float64))
        body = f'{{"inputs":[{{"name":"input","shape":[100,64],"datatype":"FP32","data":[{text}]}}]}}'
        numbers = client.infer(body.encode()).json["outputs"][0]["data"]
        raw, headers = binary_request(rows, parameters={"binary_data_output": True})
        answer = client.infer(raw, **headers)
        exact = np.frombuffer(
            answer.body[int(answer.headers["inference-header-content-length"]) :], np.float32
        )
        assert [None if isinstance(n, str) else np.float32(n) for n in numbers] == [
            None if not np.isfinite(n) else n for n in exact
        ]
    client.close()


def test_halfway_between_two_floats_the_text_decides(rest: RestClient) -> None:
    """1 + 2^-24 lies between two floats, and a digit 40 places on decides: a double would not see it."""
    middle = "1.000000059604644775390625"
    x = np.zeros((2, 64), np.float32)
    body = json.dumps(json_request(x)).replace("0.0", middle + "0" * 20 + "1").encode()
    above = rest.infer(body).json["outputs"][0]["data"]
    x[:] = np.nextafter(np.float32(1), np.float32(2))
    assert rest.infer(json_request(x)).json["outputs"][0]["data"] == above
    assert rest.infer(json.dumps(json.loads(body), sort_keys=True).encode()).status == 200
    first = body.replace(b'"name": "input", "shape": [2, 64], "datatype": "FP32", ', b"")
    first = first.replace(b"]]}", b']], "name": "input", "shape": [2, 64], "datatype": "FP32"}')
    assert rest.infer(first).json["outputs"][0]["data"] == above


def test_arms_and_headers_as_in_grpc(rest: RestClient) -> None:
    for answer in (
        rest.infer(json_request(ROW, parameters={"variant": "unfused"})),
        rest.infer(json_request(ROW, parameters={"arm": "1/unfused"})),
        rest.infer(json_request(ROW), X_Fused_Mlp_Arm="1/unfused"),
    ):
        assert answer.json["parameters"] == {"variant": "unfused"}


@pytest.mark.parametrize("header", [{"X_Request_Timeout_Ms": "0"}, {"Grpc_Timeout": "1n"}])
def test_a_deadline_that_has_passed(rest: RestClient, header: dict[str, str]) -> None:
    answer = rest.infer(json_request(ROW), **header)
    assert answer.status == 504
    assert "deadline" in answer.error


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("GZip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)],
)
def test_packed_requests(rest: RestClient, expected: np.ndarray, encoding: str, pack: object) -> None:
    assert callable(pack)
    body = pack(json.dumps(json_request(np.repeat(ROW, 50, 0))).encode())
    data = rest.infer(body, Content_Encoding=encoding).json["outputs"][0]["data"]
    assert np.array_equal(np.array(data[:10], np.float32), expected[0])


def test_pipelined_requests_are_answered_in_their_order(rest_server: Server) -> None:
    requests = [post(json.dumps(json_request(ROW, id=f"id-{i:03}")).encode()) for i in range(100)]
    requests[50] = b"GET /v2/models/digits HTTP/1.1\r\nHost: x\r\n\r\n"  # by Python, and slower
    with socket.create_connection(("127.0.0.1", rest_port(rest_server)), timeout=20) as wire:
        wire.sendall(b"".join(requests))
        answers = read_until(wire, 100).split(b"HTTP/1.1 200 OK")[1:]
    assert b'"platform"' in answers[50]
    assert [i for i in range(100) if b"id-%03d" % i in answers[i]] == [i for i in range(100) if i != 50]


def test_bytes_one_by_one(rest_server: Server) -> None:
    chunked = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = json.dumps(json_request(ROW)).encode()
    chunked += b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (9, body[:9], len(body) - 9, body[9:])
    with socket.create_connection(("127.0.0.1", rest_port(rest_server)), timeout=20) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for request in (post(body), chunked):
            for i in range(len(request)):
                wire.sendall(request[i : i + 1])
            assert read_until(wire, 1, b"]}]}").startswith(b"HTTP/1.1 200 OK")


def test_a_target_with_its_host(rest_server: Server) -> None:
    """As a proxy gets it: a server has to take it too (RFC 9112, 3.2.2)."""
    port = rest_port(rest_server)
    body = json.dumps(json_request(ROW)).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as wire:
        wire.sendall(b"GET http://127.0.0.1:%d/v2?a=b HTTP/1.1\r\nHost: x\r\n\r\n" % port)
        assert b'"fused-mlp"' in read_until(wire, 1, b"]}")
        wire.sendall(b"GET http://127.0.0.1:%d HTTP/1.1\r\nHost: x\r\n\r\n" % port)
        assert b"unknown path /;" in read_until(wire, 1, b"}")
        wire.sendall(post(body, path=f"HTTP://127.0.0.1:{port}/v2/models/digits/infer"))
        assert b'"outputs"' in read_until(wire, 1, b"]}]}")


def test_a_caller_that_waits_for_100_continue(rest_server: Server) -> None:
    body = json.dumps(json_request(ROW)).encode()
    head = post(body, b"Expect: 100-Continue")[: -len(body)]
    with socket.create_connection(("127.0.0.1", rest_port(rest_server)), timeout=20) as wire:
        wire.sendall(head)
        assert read_until(wire, 1, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.sendall(body)
        assert b"200 OK" in read_until(wire, 1, b"]}]}")


def test_head_and_other_verbs(rest: RestClient) -> None:
    head = rest.ask("HEAD", "/v2")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) > 20
    for verb, path, allowed in (
        ("GET", "/v2/models/digits/infer", "POST"),
        ("POST", "/v2/health/live", "GET"),
        ("PUT", "/v2", "GET, POST"),
    ):
        answer = rest.ask(verb, path)
        assert (answer.status, answer.headers["allow"]) == (405, allowed)
    assert rest.ask("GET", "/v2/nonesuch").status == 404


def test_browsers_of_named_origins_only(rest: RestClient) -> None:
    ask = {"Access_Control_Request_Method": "POST"}
    allowed = rest.ask("OPTIONS", "/v2/models/digits/infer", Origin=ORIGIN, **ask)
    assert allowed.status == 204
    assert allowed.headers["access-control-allow-origin"] == ORIGIN
    may_send = allowed.headers["access-control-allow-headers"].split(", ")
    documented = {
        "x-request-timeout-ms",
        "grpc-timeout",
        "x-ab-key",
        "x-fused-mlp-arm",
        "x-fused-mlp-variant",
    }
    assert documented | {"inference-header-content-length", "content-encoding", "traceparent"} <= {*may_send}
    assert rest.infer(json_request(ROW), Origin=ORIGIN).headers["access-control-allow-origin"] == ORIGIN
    other = rest.ask("OPTIONS", "/v2/models/digits/infer", Origin="https://evil.example", **ask)
    assert other.status == 405
    refused = rest.infer(json_request(ROW), Origin="null")  # a form can send it without asking
    assert refused.status == 403
    assert "access-control-allow-origin" not in refused.headers
    assert "access-control-allow-origin" not in rest.ask("GET", "/v2", Origin="null").headers


@pytest.mark.parametrize("version", ["--http1.1", "--http2", "--http2-prior-knowledge"])
def test_curl(rest_server: Server, expected: np.ndarray, version: str) -> None:
    url = f"http://127.0.0.1:{rest_port(rest_server)}"
    expects = ["-H", "Expect: 100-continue"] if version == "--http1.1" else []
    for rows in (1, 1000):
        request = json_request(np.repeat(ROW, rows, 0))
        done = subprocess.run(
            ["curl", "-sS", version, *expects, "--data-binary", "@-", "-w", "%{http_code}",
             f"{url}/v2/models/digits/infer"],
            input=json.dumps(request).encode(), capture_output=True, check=True, timeout=60,
        )  # fmt: skip
        answer, code = done.stdout[:-3], done.stdout[-3:]
        assert (code, done.stderr) == (b"200", b"")
        data = np.array(json.loads(answer)["outputs"][0]["data"], np.float32).reshape(rows, 10)
        assert np.array_equal(data[-1:], expected)


def test_stopping_answers_what_was_accepted_and_closes(expected: np.ndarray) -> None:
    with Server(front="native", rest_port=0) as server:
        port = rest_port(server)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as wire:
            body = json.dumps(json_request(ROW)).encode()
            wire.sendall(post(body))
            read_until(wire, 1, b"]}]}")
            had = server.metric("fused_mlp_front_received_bytes_total")
            wire.sendall(post(body)[:100])  # begun before it stops, so answered
            while server.metric("fused_mlp_front_received_bytes_total") == had:
                pass
            read_again = socket.create_connection(("127.0.0.1", port), timeout=20)  # idle: closed at once
            server.process.terminate()
            assert read_again.recv(100) == b""
            read_again.close()
            wire.sendall(post(body)[100:])
            got = read_until(wire, 1, b"]}]}")
            assert b"200 OK" in got
            assert b"connection: close" in got
            assert wire.recv(100) == b""
        assert server.wait() == 0


def test_rest_that_cannot_be_had_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_to_exit(front="native", rest_port=port)
    told = f"127.0.0.1:{port} for REST: Address already in use; set FUSED_MLP_REST_PORT (off: none)"
    assert told in done.stderr
    done = run_to_exit(front="python", rest_port=0)
    assert done.returncode == 1
    assert (
        "FUSED_MLP_REST_PORT=0: it needs the native front: FUSED_MLP_FRONT=python; or set it to off"
        in done.stderr
    )
    assert done.stderr.count("\n") == 1
    with Server(front="native", rest_port="off") as server:
        assert "REST" not in server.banner


def test_a_peer_that_goes_is_noticed_behind_what_it_has_pipelined() -> None:
    with PuppetService(front="native", rest_port=0) as puppet:
        puppet.hold()
        with socket.create_connection(("127.0.0.1", puppet.service.rest_port), timeout=20) as wire:
            wire.sendall(post(json.dumps(json_request(ROW)).encode()) * 2)
            puppet.wait_entered()
        puppet.wait_for(lambda: puppet.metric("fused_mlp_requests_total", code="CANCELLED") == 1)
