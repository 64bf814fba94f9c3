# SPDX-License-Identifier: Apache-2.0
"""Who is wrong when the variants differ: a caller who chooses inputs cannot have a right kernel withdrawn, and a wrong
one is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fused_mlp.kernels.backends.eager import EagerKernel
from fused_mlp.models import Mlp, MlpSpec, save
from fused_mlp.models.program.spec import INPUT, Linear
from fused_mlp.models.weights.precision import reduce_precision
from fused_mlp.service.client import Client
from tests.support.puppet import PuppetService

X = np.ones((1, 64), np.float32)
WITHDRAW = '{"*": {"on_mismatch": "unfused"}}'
VERDICTS = (
    "fused_wrong",
    "unfused_wrong",
    "both_wrong",
    "unfused_not_finite",
    "within_bound",
    "int8_cost",
    "not_judged",
)


def verdicts(puppet: PuppetService) -> dict[str, float]:
    """Those that were found."""
    name = "fused_mlp_shadow_mismatches_total"
    counts = {each: puppet.metric(name, model="digits", version="1", verdict=each) for each in VERDICTS}
    return {each: count for each, count in counts.items() if count}


def predict(puppet: PuppetService, client: Client, x: Any) -> Any:
    """The answer, once the shadow has compared it."""
    before = puppet.metric("fused_mlp_shadow_batches_total", outcome="compared")
    prediction = client.predict("digits", x)
    puppet.wait_for(lambda: puppet.metric("fused_mlp_shadow_batches_total", outcome="compared") > before)
    return prediction


def test_a_caller_cannot_withdraw_a_right_kernel(caplog: pytest.LogCaptureFixture) -> None:
    """At a scale of 1e7 a rounding error is as large as the differences between logits. Bisection between two inputs of
    different classes finds rows where two right kernels differ by a tenth, a hundred times the tolerance."""
    caplog.set_level("INFO")
    generator = np.random.default_rng(0)
    settings = {"backend": "cpu", "shadow": 1, "policy": WITHDRAW}
    with PuppetService(**settings) as puppet, Client(puppet.target) as client:
        while puppet.metric("fused_mlp_shadow_max_rel_difference") < 0.05:
            low, high = generator.uniform(0, 1e7, (2, 1, 64)).astype(np.float32)
            label = predict(puppet, client, low).output.argmax()
            if predict(puppet, client, high).output.argmax() == label:
                continue
            for _ in range(30):
                middle = ((low.astype(np.float64) + high) / 2).astype(np.float32)
                if predict(puppet, client, middle).output.argmax() == label:
                    low = middle
                else:
                    high = middle
        puppet.wait_for(lambda: sum(verdicts(puppet).values()) >= 1)
        assert set(verdicts(puppet)) <= {"within_bound", "not_judged"}
        assert puppet.metric("fused_mlp_variant_fallback") == 0
        assert client.predict("digits", X).variant == "fused"
        puppet.wait_for(lambda: "digits/1: no mismatch, fused and unfused differ by" in caplog.text)
    assert caplog.text.count("no mismatch") == 1


@pytest.mark.parametrize("x", [np.full((1, 64), np.nan), np.full((1, 64), 3e38), np.full((1, 64), np.inf)])
def test_nan_and_overflow_in_a_request_prove_nothing(x: Any) -> None:
    with PuppetService(shadow=1, policy=WITHDRAW) as puppet, Client(puppet.target) as client:
        puppet.kernel.error_from = 1e30  # NaN included
        for error in (np.nan, np.inf, 1e30):  # what an overflow in another order might make of it
            puppet.kernel.error = error
            assert predict(puppet, client, x.astype(np.float32)).variant == "fused"
        assert set(verdicts(puppet)) <= {"within_bound", "not_judged"}
        assert puppet.metric("fused_mlp_variant_fallback") == 0


def test_a_kernel_that_is_slightly_wrong_on_some_rows_is_withdrawn(caplog: pytest.LogCaptureFixture) -> None:
    with PuppetService(shadow=1, policy=WITHDRAW) as puppet, Client(puppet.target) as client:
        puppet.kernel.error, puppet.kernel.error_from = (
            0.002,
            15,
        )  # no row of the check at load has such a value
        predict(puppet, client, X)
        assert verdicts(puppet) == {}
        predict(puppet, client, 15 * X)
        puppet.wait_for(lambda: client.predict("digits", X).variant == "unfused")
        assert verdicts(puppet) == {"fused_wrong": 1}
        assert "fused is wrong: 0.002 from float64, where rounding explains" in caplog.text
        assert "unfused is not proven wrong" in caplog.text


def test_a_wrong_unfused_kernel_does_not_withdraw_fused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [0.0]
    run = EagerKernel.run

    def off(self: EagerKernel, x: Any, y: Any) -> str:
        strategy = run(self, x, y)
        y += errors[-1]
        return strategy

    monkeypatch.setattr(EagerKernel, "run", off)
    settings = {"backend": "cpu", "shadow": 1, "policy": WITHDRAW}
    with PuppetService(**settings) as puppet, Client(puppet.target) as client:
        for count, error in enumerate((0.5, np.nan), 1):
            errors.append(error)
            predict(puppet, client, X)
            puppet.wait_for(lambda: verdicts(puppet) == {"unfused_wrong": count})  # noqa: B023
        assert client.predict("digits", X).variant == "fused"
        assert "digits/1: MISMATCH, serving as before: fused and unfused differ by 0.5" in caplog.text
        assert "unfused is wrong: 0.5 from float64, where rounding explains" in caplog.text


def test_live_rows_that_int8_was_not_measured_on_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One feature a thousand times as large as the others takes all the bits of its row."""
    generator = np.random.default_rng(0)
    tensors = {"a.weight": generator.standard_normal((1, 64), np.float32), "a.bias": np.zeros(1, np.float32)}
    tensors["a.weight"][:, 0] *= 1e-3
    mlp = Mlp(MlpSpec(in_features=64, steps=(Linear(name="a", input=INPUT, out_features=1),)), tensors)
    save(reduce_precision(mlp, "int8"), tmp_path / "digits" / "1")
    x = generator.standard_normal((8, 64), np.float32)
    x[:, 0] *= 1000
    settings = {"backend": "cpu", "shadow": 1, "policy": WITHDRAW, "model_repository": tmp_path}
    with PuppetService(**settings) as puppet, Client(puppet.target) as client:
        assert "digits/1: 64-1, int8, answers fused" in puppet.service.banner()
        predict(puppet, client, x)
        puppet.wait_for(lambda: "import again with --calibrate" in caplog.text)
        assert verdicts(puppet) == {"int8_cost": 1}
        predict(puppet, client, x)
        assert client.predict("digits", x).variant == "fused"
        error = client.model("digits").version().precision_error
        assert error is not None
        assert (error.cosine, error.top1) == (None, None)  # of one output
    (warning,) = [each for each in caplog.records if "on live rows, measured" in each.message]
    assert warning.levelname == "WARNING"
