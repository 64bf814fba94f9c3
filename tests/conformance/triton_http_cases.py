# SPDX-License-Identifier: Apache-2.0
"""What an unmodified tritonclient.http, requests and httpx do with our REST port. A program of its own, run by its own
interpreter: `triton_http_cases.py TARGET CA`; prints one JSON object, case -> "ok" or what went wrong."""

import asyncio
import json
import ssl
import sys

import httpx
import numpy as np
import requests
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio

target, ca = sys.argv[1:3]
url = f"{'https' if ca else 'http'}://{target}"
options = {"ssl": True, "ssl_options": {"ca_certs": ca}} if ca else {}
client = triton.InferenceServerClient(target, concurrency=8, **options)
row = np.arange(64, dtype=np.float32).reshape(1, 64) / 64


def tensor(x, kind="FP32", binary=True):
    made = triton.InferInput("input", list(x.shape), kind)
    made.set_data_from_numpy(x, binary_data=binary)
    return made


def requested(binary=True):
    return [triton.InferRequestedOutput("output", binary_data=binary)]


def live_and_ready():
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.is_model_ready("digits", "1")
    assert not client.is_model_ready("nonesuch")


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


def infer_other_dtypes():
    expected = client.infer("digits", [tensor(row)]).as_numpy("output")
    for dtype, kind, tolerance in ((np.float16, "FP16", 1e-2), (np.float64, "FP64", 1e-6)):
        output = client.infer("digits", [tensor(row.astype(dtype), kind)]).as_numpy("output")
        assert output.dtype == dtype
        np.testing.assert_allclose(output, expected, atol=tolerance)


def infer_many_rows():
    x = np.random.default_rng(0).random((1000, 64), np.float32)
    output = client.infer("digits", [tensor(x)]).as_numpy("output")
    assert output.shape == (1000, 10)
    np.testing.assert_array_equal(
        output[123], client.infer("digits", [tensor(x[123:124])]).as_numpy("output")[0]
    )


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
    for call, status, word in (
        (lambda: client.infer("nonesuch", [tensor(row)]), "404", "nonesuch"),
        (lambda: client.infer("digits", [tensor(row[:, :63])]), "400", "64 columns"),
        (lambda: client.infer("digits", [tensor(row)], model_version="7"), "404", "7"),
        (lambda: client.load_model("digits"), "403", "FUSED_MLP_ALLOW_LOAD"),
        (client.get_trace_settings, "404", "unknown path"),
    ):
        try:
            call()
        except triton.InferenceServerException as error:
            assert error.status() == status, error
            assert word in error.message(), error
        else:
            raise AssertionError(f"expected {status}")


def aio_client():
    async def run():
        context = {"ssl": True, "ssl_context": ssl.create_default_context(cafile=ca)} if ca else {}
        async with triton_aio.InferenceServerClient(target, **context) as aio:
            assert await aio.is_server_ready()
            results = await asyncio.gather(*(aio.infer("digits", [tensor(row)]) for _ in range(20)))
            assert all(result.as_numpy("output").shape == (1, 10) for result in results)

    asyncio.run(run())


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


CASES = (
    live_and_ready,
    metadata_config_statistics_index,
    infer_in_json_and_in_bytes,
    infer_other_dtypes,
    infer_many_rows,
    infer_compressed,
    infer_with_headers_and_parameters,
    async_infer,
    errors_carry_status_and_text,
    aio_client,
    with_requests,
    with_httpx,
)
outcome = {}
for case in CASES:
    try:
        case()
        outcome[case.__name__] = "ok"
    except Exception as error:
        outcome[case.__name__] = repr(error)
client.close()
print(json.dumps(outcome))
