# SPDX-License-Identifier: Apache-2.0
"""What the programs that drive tritonclient have in common, over gRPC or HTTP. Run by their interpreter, not by
ours."""

import asyncio
import json

import numpy as np

row = np.arange(64, dtype=np.float32).reshape(1, 64) / 64


class SharedCases:
    """Cases that are written alike for both clients; tensor: makes an InferInput of an array and its datatype."""

    def __init__(self, client, tensor):
        self.client = client
        self.tensor = tensor

    def live_and_ready(self):
        assert self.client.is_server_live()
        assert self.client.is_server_ready()
        assert self.client.is_model_ready("digits")
        assert self.client.is_model_ready("digits", "1")
        assert not self.client.is_model_ready("nonesuch")

    def infer_other_dtypes(self):
        expected = self.client.infer("digits", [self.tensor(row)]).as_numpy("output")
        for dtype, kind, tolerance in ((np.float16, "FP16", 1e-2), (np.float64, "FP64", 1e-6)):
            output = self.client.infer("digits", [self.tensor(row.astype(dtype), kind)]).as_numpy("output")
            assert output.dtype == dtype
            np.testing.assert_allclose(output, expected, atol=tolerance)

    def infer_many_rows(self):
        x = np.random.default_rng(0).random((1000, 64), np.float32)
        output = self.client.infer("digits", [self.tensor(x)]).as_numpy("output")
        assert output.shape == (1000, 10)
        alone = self.client.infer("digits", [self.tensor(x[123:124])]).as_numpy("output")
        np.testing.assert_array_equal(output[123], alone[0])

    def check_errors(self, error_type, no_model, bad_shape, no_version, forbidden, unknown):
        """Each as (status, word of the message)."""
        for call, (status, word) in (
            (lambda: self.client.infer("nonesuch", [self.tensor(row)]), no_model),
            (lambda: self.client.infer("digits", [self.tensor(row[:, :63])]), bad_shape),
            (lambda: self.client.infer("digits", [self.tensor(row)], model_version="7"), no_version),
            (lambda: self.client.load_model("digits"), forbidden),
            (self.client.get_trace_settings, unknown),
        ):
            try:
                call()
            except error_type as error:
                assert status in error.status(), error
                assert word in error.message(), error
            else:
                raise AssertionError(f"expected {status}")

    def check_aio(self, make_client):
        async def run():
            async with make_client() as aio:
                assert await aio.is_server_ready()
                results = await asyncio.gather(*(aio.infer("digits", [self.tensor(row)]) for _ in range(20)))
                assert all(result.as_numpy("output").shape == (1, 10) for result in results)

        asyncio.run(run())


def run_cases(client, *cases):
    """Prints one JSON object, case -> "ok" or what went wrong."""
    outcome = {}
    for case in cases:
        try:
            case()
            outcome[case.__name__] = "ok"
        except Exception as error:
            outcome[case.__name__] = repr(error)
    client.close()
    print(json.dumps(outcome))
