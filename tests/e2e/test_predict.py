# SPDX-License-Identifier: Apache-2.0
"""Good requests over a real socket."""

import numpy as np
import pytest

from fused_mlp import models
from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client import AsyncClient, Client, PredictError
from fused_mlp.service.settings.settings import DEMO_REPOSITORY
from tests.support.fronts import both_fronts
from tests.support.server import Server


@pytest.fixture(scope="module")
def reference() -> models.Mlp:
    return models.load(DEMO_REPOSITORY / "digits" / "1")


def eager(mlp: models.Mlp, x: np.ndarray) -> np.ndarray:
    import torch

    with torch.inference_mode():
        return mlp.to_torch()(torch.from_numpy(x)).numpy()


@both_fronts
def test_example_is_classified_as_its_digit(client: Client, example: np.ndarray) -> None:
    version = client.model("digits").version()
    assert version is not None
    prediction = client.predict("digits", example)
    label = version.labels[int(prediction.output.argmax())]
    assert version.description.endswith(f"image of a {label}.")
    assert prediction.output.sum() == pytest.approx(1, abs=1e-5)  # softmax
    assert (prediction.model, prediction.version) == ("digits", 1)
    assert prediction.timings.batch_rows >= 1


@both_fronts
@pytest.mark.parametrize("variant", ["fused", "unfused"])
def test_variant_of_the_request_is_run(client: Client, reference: models.Mlp, variant: str) -> None:
    x = np.random.default_rng(1).uniform(0, 16, (37, 64)).astype(np.float32)
    prediction = client.predict("digits", x, variant=variant)
    assert prediction.variant == variant
    # Probabilities, so absolute: both sum 64 products in float32, in different orders.
    np.testing.assert_allclose(prediction.output, eager(reference, x), atol=2e-6)


@both_fronts
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 2e-6), ("float16", 1e-3)])
def test_answer_comes_in_the_dtype_of_the_request(
    client: Client, reference: models.Mlp, dtype: str, tolerance: float
) -> None:
    x = np.random.default_rng(2).integers(0, 17, (3, 64)).astype(dtype)  # exact in every dtype
    output = client.predict("digits", x).output
    assert output.dtype == x.dtype
    np.testing.assert_allclose(output, eager(reference, x.astype(np.float32)), atol=tolerance)


def test_bfloat16_tensor_is_served(client: Client, reference: models.Mlp) -> None:
    import torch

    x = torch.full((2, 64), 3.0, dtype=torch.bfloat16)
    expected = eager(reference, np.full((2, 64), 3.0, np.float32))
    np.testing.assert_allclose(np.asarray(client.predict("digits", x).output), expected, atol=8e-3)


def test_values_typed_by_hand_are_answered_as_values(server: Server, example: np.ndarray) -> None:
    import grpc

    with grpc.insecure_channel(server.target) as channel:
        stub = Stub(channel, pb, "Inference")
        request = pb.PredictRequest(model="digits", input=pb.Tensor(values=example), request_id="by hand")
        response = stub.Predict(request)
    assert list(response.output.shape) == [1, 10]
    assert len(response.output.values) == 10
    assert not response.output.data
    assert response.request_id == "by hand"
    assert response.strategy


def test_nan_and_infinity_are_served_as_they_are(client: Client, example: np.ndarray) -> None:
    x = np.stack([example, np.full_like(example, np.nan), np.full_like(example, np.inf)])
    output = client.predict("digits", x).output
    assert np.isnan(output[1]).all()
    np.testing.assert_array_equal(output[0], client.predict("digits", example[None]).output[0])


def test_rows_are_bit_identical_alone_and_in_a_batch(client: Client) -> None:
    x = np.random.default_rng(3).uniform(0, 16, (64, 64)).astype(np.float32)
    together = client.predict("digits", x, variant="fused").output
    for index in (0, 1, 31, 63):
        alone = client.predict("digits", x[index], variant="fused").output
        np.testing.assert_array_equal(alone, together[index])


@both_fronts
def test_stream_answers_each_request_and_goes_on_after_a_bad_one(client: Client, example: np.ndarray) -> None:
    inputs = [example, example[:-1], example, np.stack([example] * 5)]
    items = {item.index: item for item in client.stream("digits", inputs)}
    assert sorted(items) == [0, 1, 2, 3]
    with pytest.raises(PredictError, match="64"):
        items[1].unwrap()
    assert [items[index].unwrap().output.shape for index in (0, 2, 3)] == [(10,), (10,), (5, 10)]


@both_fronts
async def test_async_client_gets_the_same_answers(
    server: Server, client: Client, example: np.ndarray
) -> None:
    async with AsyncClient(server.target) as other:
        prediction = await other.predict("digits", example, variant="fused")
    expected = client.predict("digits", example, variant="fused")
    np.testing.assert_array_equal(prediction.output, expected.output)
