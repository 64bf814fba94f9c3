# SPDX-License-Identifier: Apache-2.0
"""The models that the kernel benchmark hands to other engines compute what ours does."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx.reference
import pytest
import torch
import torch._dynamo.config
import torch._inductor.config

from bench.kernels.__main__ import main
from bench.kernels.engines import last_row, torch_compile
from bench.kernels.neighbour import work
from bench.kernels.onnx_export import onnx_bytes
from bench.kernels.report import beside_summary
from bench.kernels.shapes import SHAPES, build
from fused_mlp import from_onnx, kernels
from fused_mlp.kernels.profile.shapes import spec_of, with_random_weights
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.spec import (
    Affine,
    Combine,
    Concat,
    Elementwise,
    Gated,
    Linear,
    Norm,
    Output,
    Slice,
    Softmax,
)


@pytest.mark.parametrize("shape", ["64-128-128-10 relu", "128x8 deep silu", "GeGLU 768-3072-768"])
def test_the_onnx_model_of_the_benchmark_is_the_same_model(shape: str, tmp_path: Path) -> None:
    mlp = build(shape)
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_bytes(mlp))
    x = np.random.default_rng(0).standard_normal((3, SHAPES[shape].in_features), np.float32)
    expected = kernels.compile(mlp, threads=1)(x)
    assert np.array_equal(kernels.compile(from_onnx(path), threads=1)(x), expected)


def test_torch_compile_compiles_each_of_many_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 8 compilations of one kind of module, torch runs eager unless it is told to start again."""
    compiled = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Any:
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    threads = torch.get_num_threads()
    try:  # torch_compile sets these for its whole process
        with (
            torch._inductor.config.patch(freezing=False),
            torch._dynamo.config.patch(fail_on_recompile_limit_hit=False),
        ):
            for width in range(2, 7):
                call = torch_compile(with_random_weights(spec_of((width, 4, 4), "relu")), 1)
                for batch in (1, 2, 3):
                    call(np.ones((batch, width), np.float32))()
    finally:
        torch.set_num_threads(threads)
        torch._dynamo.reset()
    assert len(compiled) == 5 * 2  # batch 1, and all others


EVERY_STEP = MlpSpec(
    in_features=6,
    steps=[
        Gated(name="gate", input="input", out_features=8, function="gelu_tanh"),
        Norm(name="layer", input="gate", kind="layer", weight=False, bias=False),
        Linear(name="up", input="layer", out_features=8, bias=False),
        Elementwise(name="f1", input="up", function="x * sigmoid(1.702 * x) + leaky_relu(x, 0.2) - clip(x, -1, 2)"),
        Elementwise(name="f2", input="f1", function="elu(x, 0.5) + softplus(x, 2, 20) / (1 + abs(silu(x)))"),
        Norm(name="rms", input="f2", kind="rms", bias=False),
        Combine(name="times", op="multiply", inputs=("rms", "gate")),
        Combine(name="less", op="subtract", inputs=("times", "f1")),
        Affine(name="affine", input="less"),
        Norm(name="l2", input="affine", kind="l2", weight=False, bias=False, eps=1e-12),
        Concat(name="both", inputs=("l2", "input")),
        Slice(name="part", input="both", start=3, stop=12),
        Softmax(name="p", input="part"),
        Softmax(name="log_p", input="part", op="log_softmax"),
    ],
    outputs=[Output(name="p", value="p"), Output(name="log_p", value="log_p")],
)  # fmt: skip
PROGRAMS = {name: spec for name, spec in SHAPES.items() if spec.layers is None} | {"every step": EVERY_STEP}


@pytest.mark.parametrize("shape", PROGRAMS)
def test_the_onnx_model_of_a_program_is_the_same_program(shape: str) -> None:
    mlp = with_random_weights(PROGRAMS[shape])
    session = onnx.reference.ReferenceEvaluator(onnx.load_from_string(onnx_bytes(mlp)))
    x = np.random.default_rng(0).standard_normal((3, mlp.spec.in_features), np.float32)
    # Both in float32, in other orders of summation.
    expected = evaluate(mlp, x)[-1]
    np.testing.assert_allclose(last_row(session.run(None, {"input": x})), expected, rtol=1e-4, atol=1e-4)


class Pauses:
    """A stop event that counts the pauses instead of waiting."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.bursts: list[float] = []
        self.pauses: list[float] = []
        self._last = time.thread_time()

    def is_set(self) -> bool:
        return len(self.pauses) == self.most

    def wait(self, seconds: float) -> None:
        now = time.thread_time()
        self.bursts.append(now - self._last)
        self.pauses.append(seconds)
        self._last = now


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_the_other_process_uses_its_share_in_bursts(share: float) -> None:
    pauses = Pauses(12)
    work(share, 0.006, pauses)  # type: ignore[arg-type]
    busy, idle = sum(pauses.bursts), sum(pauses.pauses)
    # A burst ends with the first look at the clock after its end: a little later.
    assert busy / (busy + idle) == pytest.approx(share, rel=0.2)
    assert 0.006 / 30 <= min(pauses.bursts) < max(pauses.bursts) / 2
    assert max(pauses.pauses) <= (1 - share) / share * 0.006


def test_medians_beside_other_work_are_judged_from_100_us_on() -> None:
    def cell(batch: int, fused: float, other: float) -> dict[str, Any]:
        medians = {"fused": fused, "eager": 9e9, "ONNX Runtime": other}
        return {"threads": 2, "shape": "64-10", "batch": batch, "median_us": medians, "best_us": medians}

    cells = [cell(1, 50.0, 1.0), cell(33, 150.0, 300.0), cell(200, 1000.0, 900.0)]
    (line,) = beside_summary({"beside": 0.4, "burst_ms": 100.0, "cells": cells})
    assert "over 3% slower at 1 of 2 points; 64-10 batch 200 0.90x" in line
    assert "40% of a core, bursts of up to 100 ms" in line


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--beside", "1.5"], "--beside: expected a share of a core from 0 to 1, got 1.5"),
        (["--beside", "0.4", "--burst-ms", "0"], "--burst-ms: expected 0.1 to 1000 ms, got 0"),
    ],
)
def test_shares_and_bursts_out_of_range_are_refused(
    options: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.kernels", *options])
    with pytest.raises(SystemExit):
        main()
    assert text in capsys.readouterr().err
