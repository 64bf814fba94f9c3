# SPDX-License-Identifier: Apache-2.0
"""What an unmodified tritonclient does with our server. A program of its own, run by its own interpreter:
`triton_cases.py TARGET CA`; prints one JSON object, case -> "ok" or what went wrong."""

import queue
import sys

import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from triton_shared import SharedCases, row, run_cases

target, ca = sys.argv[1:3]
options = {"ssl": True, "root_certificates": ca} if ca else {}
client = triton.InferenceServerClient(target, **options)


def tensor(x, kind="FP32"):
    made = triton.InferInput("input", list(x.shape), kind)
    made.set_data_from_numpy(x)
    return made


shared = SharedCases(client, tensor)


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
    shared.check_errors(
        triton.InferenceServerException,
        no_model=("NOT_FOUND", "nonesuch"),
        bad_shape=("INVALID_ARGUMENT", "64 columns"),
        no_version=("NOT_FOUND", "7"),
        forbidden=("PERMISSION_DENIED", "FUSED_MLP_ALLOW_LOAD"),
        unknown=("UNIMPLEMENTED", ""),
    )


def aio_client():
    shared.check_aio(lambda: triton_aio.InferenceServerClient(target, **options))


run_cases(
    client,
    shared.live_and_ready,
    metadata_config_statistics_index,
    infer,
    shared.infer_other_dtypes,
    shared.infer_many_rows,
    infer_compressed,
    infer_with_headers_and_timeout,
    async_infer,
    stream,
    errors_carry_code_and_text,
    aio_client,
)
