# SPDX-License-Identifier: Apache-2.0
"""Client.predict and AsyncClient.predict over a real socket: shapes, dtypes, options, errors."""

from __future__ import annotations

import inspect

import grpc
import ml_dtypes
import numpy as np
import pytest
import torch

from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.service.client import AsyncClient, Client, PredictError

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4) / 8


def test_prediction_carries_output_and_provenance(connect, scripted, expected):
    prediction = connect(scripted.target).predict("tiny", ROWS, request_id="mine")
    np.testing.assert_allclose(prediction.output, expected(ROWS), rtol=1e-6)  # same ops, maybe other threads
    assert (prediction.model, prediction.version, prediction.variant) == ("tiny", 7, "fused")
    assert (prediction.strategy, prediction.request_id) == ("eager", "mine")
    timings = prediction.timings
    assert (timings.queue_us, timings.compute_us, timings.batch_rows) == (1.5, 2.5, 2)
    with pytest.raises(AttributeError):
        prediction.model = "other"
    prediction.output[0, 0] = 1.0  # the caller's own copy, writable


@pytest.mark.parametrize("output", [["pi", "v"], b"pi", 1])
def test_output_that_is_no_name_is_refused_with_what_is_expected(connect, scripted, output):
    with pytest.raises(
        TypeError, match=r"output: expected the name of one output, '\*' for all or None for the"
    ):
        connect(scripted.target).predict("tiny", ROWS, output=output)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (2, 4), (2, 3, 4), (1, 1, 1, 4)])
def test_output_keeps_every_dimension_but_the_last(connect, scripted, expected, shape):
    x = np.linspace(-1, 1, np.prod(shape), dtype=np.float32).reshape(shape)
    output = connect(scripted.target).predict("tiny", x).output
    assert output.shape == (*shape[:-1], 3)
    np.testing.assert_allclose(output.reshape(-1, 3), expected(x.reshape(-1, 4)), rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "wire", "came_back"),
    [
        (ROWS, pb.FP32, np.float32),
        (ROWS.astype(np.float16), pb.FP16, np.float16),
        (ROWS.astype(np.float64), pb.FP64, np.float64),
        (ROWS.astype(">f4"), pb.FP32, np.float32),
        (ROWS.astype(ml_dtypes.bfloat16), pb.BF16, np.float32),
        (torch.tensor(ROWS), pb.FP32, np.float32),
        (torch.tensor(ROWS).requires_grad_(), pb.FP32, np.float32),
        (torch.tensor(ROWS).half(), pb.FP16, np.float16),
        (torch.tensor(ROWS).double(), pb.FP64, np.float64),
        (torch.tensor(ROWS).bfloat16(), pb.BF16, np.float32),
        (torch.tensor(ROWS.T.copy()).T, pb.FP32, np.float32),
        (np.asfortranarray(ROWS), pb.FP32, np.float32),
        (ROWS.tolist(), pb.FP32, np.float32),
        (np.array([[1, 2, 3, 4]], np.uint8), pb.FP32, np.float32),
    ],
)
def test_floats_travel_in_their_own_dtype(scripted, expected, x, wire, came_back):
    with Client(scripted.target) as client:
        output = client.predict("tiny", x).output
    assert scripted.requests[0].input.dtype == wire
    assert output.dtype == came_back
    # Every value of ROWS is exact in all of these dtypes; the probabilities are rounded on the way back: by
    # half a unit in the last place, 2^-8 for the 8 significant bits of bfloat16, 2^-11 for half.
    values = x.detach().double().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, np.float64)
    np.testing.assert_allclose(output, expected(values), rtol=2**-8 if wire == pb.BF16 else 2**-11)


def test_nan_and_inf_travel_bit_for_bit(connect, scripted):
    connect(scripted.target).predict("tiny", [np.nan, np.inf, -np.inf, -0.0])
    sent = np.frombuffer(scripted.requests[0].input.data, "<f4")
    assert np.isnan(sent[0])
    assert sent[1:].tolist() == [np.inf, -np.inf, 0.0]
    assert np.signbit(sent[3])


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (3.0, "single number"),
        ([[1, 2], [3]], "all of one length"),
        (["a", "b"], "rows of numbers"),
        (np.array([1j]), "got complex128"),
        (np.array(["a"]), "got <U1"),
    ],
)
def test_what_is_no_row_of_numbers_is_refused_before_it_is_sent(scripted, x, says):
    with Client(scripted.target) as client, pytest.raises((TypeError, ValueError), match=says):
        client.predict("tiny", x)
    assert not scripted.requests


def test_options_reach_the_server(connect, scripted):
    client = connect(scripted.target, metadata={"Authorization": "Bearer x", "tenant": "a"})
    client.predict("tiny", ROWS, version=3, variant="unfused", timeout_s=5, metadata={"tenant": "b"})
    request = scripted.requests[0]
    assert (request.version, request.variant) == (3, pb.UNFUSED)
    assert scripted.time_remaining[0] == pytest.approx(5, abs=1)
    assert scripted.metadata[0].items() >= {"authorization": "Bearer x", "tenant": "b"}.items()


def test_unknown_variant_is_refused(scripted):
    with Client(scripted.target) as client, pytest.raises(ValueError, match="'fused', 'unfused' or None"):
        client.predict("tiny", ROWS, variant="fast")


def test_error_has_code_message_and_a_readable_text(connect, scripted, fail):
    fail("INVALID_ARGUMENT", "expected 4 columns, got 9")
    with pytest.raises(PredictError) as caught:
        connect(scripted.target).predict("tiny", np.ones((1, 9)), request_id="r1")
    error = caught.value
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert str(error) == "INVALID_ARGUMENT: expected 4 columns, got 9"
    assert (error.target, error.request_id, error.unreachable) == (scripted.target, "r1", False)
    assert len(scripted.requests) == 1


def test_deadline_ends_a_call_that_hangs(connect, scripted):
    with pytest.raises(PredictError) as caught:
        connect(scripted.target).predict("stuck", ROWS, timeout_s=0.2)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_an_answer_that_contradicts_itself_is_an_error(connect, scripted):
    scripted.answer = lambda _: pb.PredictResponse(
        output=pb.Tensor(shape=[2, 3], dtype=pb.FP32, data=b"1234")
    )
    with pytest.raises(PredictError, match=r"INTERNAL: the answer does not hold what it says"):
        connect(scripted.target).predict("tiny", ROWS)


def test_both_clients_have_the_same_surface():
    def surface(client: type) -> dict[str, list[str]]:
        methods = inspect.getmembers(client, inspect.isfunction)
        public = {name: fn for name, fn in methods if not name.startswith("_") or name == "__init__"}
        return {name: list(inspect.signature(fn).parameters) for name, fn in public.items()}

    assert surface(Client) == surface(AsyncClient)
