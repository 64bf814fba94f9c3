# SPDX-License-Identifier: Apache-2.0
"""What an unmodified tritonclient.http, requests and httpx do with our REST port. A program of its own, run by its own
interpreter: `triton_http_cases.py TARGET CA`; prints one JSON object, case -> "ok" or what went wrong."""

import ssl
import sys

import httpx
import numpy as np
import requests
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from triton_shared import SharedCases, row, run_cases

target, ca = sys.argv[1:3]
url = f"{'https' if ca else 'http'}://{target}"
options = {"ssl": True, "ssl_options": {"ca_certs": ca}} if ca else {}
client = triton.InferenceServerClient(target, concurrency=8, **options)


def tensor(x, kind="FP32", binary=True):
    made = triton.InferInput("input", list(x.shape), kind)
    made.set_data_from_numpy(x, binary_data=binary)
    return made


shared = SharedCases(client, tensor)


def requested(binary=True):
    return [triton.InferRequestedOutput("output", binary_data=binary)]


def metadata_config_statistics_index():
    assert client.get_server_metadata()["name"] == "fused-mlp"
    metadata = client.get_model_metadata("digits")
    assert metadata["inputs"][0]["name"] == "input"
    assert metadata["inputs"][0]["shape"] == [-1, 64]
    assert client.get_model_config("digits")["max_batch_size"] > 0
    client.infer("digits", [tensor(row)])
    statistics = client.get_inference_statistics("digits")["model_stats"][0]
    assert statistics["inference_stats"]["success"]["count"] >= 1
    assert [m["name"] for m in client.get_model_repository_index()] == ["digits"]


def infer_in_json_and_in_bytes():
    expected = None
    for bytes_in in (True, False):
        for outputs in (None, requested(True), requested(False)):
            result = client.infer(
                "digits", [tensor(row, binary=bytes_in)], outputs=outputs, request_id="seven"
            )
            output = result.as_numpy("output")
            assert output.shape == (1, 10)
            assert output.dtype == np.float32
            assert abs(output.sum() - 1) < 1e-5  # a softmax
            assert result.get_response()["id"] == "seven"
            expected = output if expected is None else expected
            np.testing.assert_array_equal(output, expected)


def infer_compressed():
    for algorithm in ("gzip", "deflate"):
        client.infer(
            "digits",
            [tensor(row)],
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )


def infer_with_headers_and_parameters():
    client.infer("digits", [tensor(row)], headers={"x-request": "1"}, timeout=10_000_000, model_version="1")
    client.infer("digits", [tensor(row)], query_params={"a": "b"}, parameters={"mine": 7})


def async_infer():
    pending = [client.async_infer("digits", [tensor(row)], request_id=str(i)) for i in range(50)]
    for index, request in enumerate(pending):
        result = request.get_result(timeout=20)
        assert result.get_response()["id"] == str(index)
        assert result.as_numpy("output").shape == (1, 10)


def errors_carry_status_and_text():
    shared.check_errors(
        triton.InferenceServerException,
        no_model=("404", "nonesuch"),
        bad_shape=("400", "64 columns"),
        no_version=("404", "7"),
        forbidden=("403", "FUSED_MLP_ALLOW_LOAD"),
        unknown=("404", "unknown path"),
    )


def aio_client():
    context = {"ssl": True, "ssl_context": ssl.create_default_context(cafile=ca)} if ca else {}
    shared.check_aio(lambda: triton_aio.InferenceServerClient(target, **context))


def raw_infer():
    """The tensor's bytes alone, without JSON; the client reads the answer."""
    expected = client.infer("digits", [tensor(row)]).as_numpy("output")
    headers = {"Inference-Header-Content-Length": "0"}
    answer = requests.post(
        f"{url}/v2/models/digits/infer", row.tobytes(), headers=headers, verify=ca or True, timeout=20
    )
    length = int(answer.headers["Inference-Header-Content-Length"])
    parsed = triton.InferenceServerClient.parse_response_body(answer.content, header_length=length)
    np.testing.assert_array_equal(parsed.as_numpy("output"), expected)


BODY = {"inputs": [{"name": "input", "shape": [1, 64], "datatype": "FP32", "data": row.tolist()}]}


def with_requests():
    with requests.Session() as session:
        for _ in range(3):  # on one connection
            answer = session.post(f"{url}/v2/models/digits/infer", json=BODY, verify=ca or True, timeout=20)
            assert answer.status_code == 200
            assert len(answer.json()["outputs"][0]["data"]) == 10
        bad = session.post(f"{url}/v2/models/digits/infer", data=b"{", verify=ca or True, timeout=20)
        assert "error" in bad.json()


def with_httpx():
    verify = ssl.create_default_context(cafile=ca) if ca else True
    for http1 in (True, False):
        with httpx.Client(http1=http1, http2=not http1, verify=verify) as session:
            answer = session.post(f"{url}/v2/models/digits/infer", json=BODY, timeout=20)
            assert answer.http_version == ("HTTP/1.1" if http1 else "HTTP/2")
            assert len(answer.json()["outputs"][0]["data"]) == 10
            assert session.get(f"{url}/v2").json()["name"] == "fused-mlp"


run_cases(
    client,
    shared.live_and_ready,
    metadata_config_statistics_index,
    infer_in_json_and_in_bytes,
    shared.infer_other_dtypes,
    shared.infer_many_rows,
    infer_compressed,
    infer_with_headers_and_parameters,
    raw_infer,
    async_infer,
    errors_carry_status_and_text,
    aio_client,
    with_requests,
    with_httpx,
)
