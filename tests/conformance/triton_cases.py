# SPDX-License-Identifier: Apache-2.0
"""What an unmodified tritonclient does with our server. A program of its own, run by its own interpreter:
`triton_cases.py TARGET CA`; prints one JSON object, case -> "ok" or what went wrong."""

import json
import queue
import sys

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio

target, ca = sys.argv[1:3]
options = {"ssl": True, "root_certificates": ca} if ca else {}
client = triton.InferenceServerClient(target, **options)
row = np.arange(64, dtype=np.float32).reshape(1, 64) / 64


def tensor(x, kind="FP32"):
    made = triton.InferInput("input", list(x.shape), kind)
    made.set_data_from_numpy(x)
    return made


def live_and_ready():
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.is_model_ready("digits", "1")
    assert not client.is_model_ready("nonesuch")


def metadata_config_statistics_index():
    metadata = client.get_model_metadata("digits")
    assert metadata.inputs[0].name == "input"
    assert list(metadata.inputs[0].shape) == [-1, 64]
    config = client.get_model_config("digits").config
    assert config.max_batch_size > 0
    client.infer("digits", [tensor(row)])
    statistics = client.get_inference_statistics("digits").model_stats[0]
    assert statistics.inference_stats.success.count >= 1
    assert [m.name for m in client.get_model_repository_index().models] == ["digits"]


def infer():
    result = client.infer(
        "digits", [tensor(row)], outputs=[triton.InferRequestedOutput("output")], request_id="seven"
    )
    output = result.as_numpy("output")
    assert output.shape == (1, 10)
    assert abs(output.sum() - 1) < 1e-5  # a softmax
    assert result.get_response().id == "seven"
    assert result.get_output("output").datatype == "FP32"


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
    client.infer("digits", [tensor(row)], compression_algorithm="gzip")


def infer_with_headers_and_timeout():
    client.infer("digits", [tensor(row)], headers={"x-request": "1"}, client_timeout=10)


def async_infer():
    results = queue.Queue()
    for _ in range(50):
        client.async_infer("digits", [tensor(row)], lambda result, error: results.put((result, error)))
    for _ in range(50):
        result, error = results.get(timeout=20)
        assert error is None
        assert result.as_numpy("output").shape == (1, 10)


def stream():
    results = queue.Queue()
    client.start_stream(lambda result, error: results.put((result, error)))
    for index in range(20):
        client.async_stream_infer("digits", [tensor(row)], request_id=str(index))
    client.async_stream_infer("nonesuch", [tensor(row)], request_id="bad")
    answers = [results.get(timeout=20) for _ in range(21)]
    client.stop_stream()
    good = {result.get_response().id for result, error in answers if error is None}
    assert good == {str(index) for index in range(20)}
    (error,) = [error for _, error in answers if error is not None]
    assert "nonesuch" in str(error)


def errors_carry_code_and_text():
    for call, code, word in (
        (lambda: client.infer("nonesuch", [tensor(row)]), "NOT_FOUND", "nonesuch"),
        (lambda: client.infer("digits", [tensor(row[:, :63])]), "INVALID_ARGUMENT", "64 columns"),
        (lambda: client.infer("digits", [tensor(row)], model_version="7"), "NOT_FOUND", "7"),
        (lambda: client.load_model("digits"), "PERMISSION_DENIED", "FUSED_MLP_ALLOW_LOAD"),
        (client.get_trace_settings, "UNIMPLEMENTED", ""),
    ):
        try:
            call()
        except triton.InferenceServerException as error:
            assert code in error.status(), error
            assert word in error.message(), error
        else:
            raise AssertionError(f"expected {code}")


def aio_client():
    import asyncio

    async def run():
        async with triton_aio.InferenceServerClient(target, **options) as aio:
            assert await aio.is_server_ready()
            results = await asyncio.gather(*(aio.infer("digits", [tensor(row)]) for _ in range(20)))
            assert all(result.as_numpy("output").shape == (1, 10) for result in results)

    asyncio.run(run())


CASES = (
    live_and_ready,
    metadata_config_statistics_index,
    infer,
    infer_other_dtypes,
    infer_many_rows,
    infer_compressed,
    infer_with_headers_and_timeout,
    async_infer,
    stream,
    errors_carry_code_and_text,
    aio_client,
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
