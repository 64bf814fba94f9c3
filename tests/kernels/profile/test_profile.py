# SPDX-License-Identifier: Apache-2.0
"""A profile's counts, traces and flame graphs for shapes whose operators are known."""

import json
from contextlib import contextmanager

import pytest
import torch

from fused_mlp.kernels import KernelUnavailable
from fused_mlp.kernels.profile import (
    Options,
    Profile,
    ProfileError,
    compare,
    parse_expectation,
    profile,
    random_mlp,
)
from fused_mlp.kernels.profile.trace_events import flame_of, forward_passes
from fused_mlp.kernels.work import work_of

SHAPES = {"relu": random_mlp([48, 64, 32, 10]), "geglu": random_mlp([48, 96, 48], "gelu", gated=True)}


@pytest.fixture(scope="module", params=SHAPES)
def shape(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def profiled(shape, tmp_path_factory) -> Profile:
    options = Options(
        batches=(1, 16),
        variants=("eager", "fused"),
        budget_s=0.02,
        trace_dir=tmp_path_factory.mktemp("traces"),
    )
    return profile(SHAPES[shape], options)


LAUNCHES = {
    "relu": {"aten::addmm": 3, "aten::relu": 2},
    # Two projections, gelu, the product, and the projection down: the five kernels of a GeGLU block.
    "geglu": {"aten::addmm": 3, "aten::gelu": 1, "aten::mul": 1},
}


@pytest.mark.parametrize("batch", [1, 16])
def test_eager_launches_what_its_layers_are(profiled, shape, batch):
    counts = profiled.point("eager", batch).counts
    assert counts.launches == LAUNCHES[shape]
    assert counts.operators["aten::linear"] == 3
    assert counts.operators["aten::t"] == 3
    # Every linear is a wrapper around a view of its weight and the product.
    working = {
        name: n for name, n in counts.operators.items() if name in ("aten::addmm", "aten::gelu", "aten::mul")
    }
    assert working.get("aten::addmm") == 3
    assert counts.dispatched > counts.bookkeeping >= 3 * 3


@pytest.mark.parametrize("batch", [1, 16])
def test_fused_is_one_operator_and_one_launch(profiled, batch):
    counts = profiled.point("fused", batch).counts
    assert counts.launches == {"fused_mlp::mlp": 1}
    assert counts.dispatched - counts.bookkeeping == 1


def test_bytes_are_those_of_the_operands(profiled, shape):
    spec = SHAPES[shape].spec
    weights = 4 * spec.parameters
    eager, fused = (profiled.point(variant, 16).counts for variant in ("eager", "fused"))
    assert fused.bytes_allocated == 16 * spec.out_features * 4
    assert fused.bytes_moved == weights + 16 * 4 * (spec.in_features + spec.out_features)
    # Eager writes every layer's result, and reads it again.
    between = 16 * 4 * sum(spec.widths[1:])
    assert eager.bytes_allocated >= between
    assert eager.bytes_moved >= weights + 2 * between


def test_times_are_measured_and_advice_is_given(profiled):
    assert [(point.batch, point.variant) for point in profiled.points] == [
        (batch, variant) for batch in (1, 16) for variant in ("eager", "fused")
    ]
    for point in profiled.points:
        assert 0 < point.time_us < 1e6
        assert point.regime.compute_us > 0
        assert 0 < point.regime.reached <= 1
    assert len(profiled.advice) == 2
    assert profiled.advice[0].startswith("batch 1 is ")
    assert "cpu" in profiled.kernel


def test_traces_are_chrome_traces_with_the_kernels_phases_inside_the_operator(profiled, shape):
    layers = len(SHAPES[shape].spec.layers)
    for key, path in profiled.traces.items():
        with open(path) as file:
            trace = json.load(file)
        spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        assert all({"name", "ts", "dur", "pid", "tid"} <= event.keys() for event in spans)
        passes = forward_passes(trace)
        assert len(passes) == 9
        if key.startswith("eager"):
            assert not any(event.get("cat") == "cpu_kernel" for event in spans)
            continue
        for each in passes:
            (operator,) = [node for node in each.walk() if node.name == "fused_mlp::mlp"]
            found = [child.name for child in operator.children if child.category == "cpu_kernel"]
            assert found == [f"layers.{index}" for index in range(layers)]
            for child in operator.children:
                if child.category == "cpu_kernel":
                    assert {"rows", "flops", "strategy"} <= child.args.keys()
                    assert "gemm" in [part.name for part in child.children]
            rows = int(key.partition("/")[2])
            flops = sum(child.args["flops"] for child in operator.children if child.category == "cpu_kernel")
            assert flops == rows * work_of(SHAPES[shape].spec).product_flops
        assert sum(event["name"].startswith("pack ") for event in spans) == layers


def test_a_gated_layer_has_an_epilogue_and_a_relu_layer_none(profiled, shape):
    layer = next(
        node
        for child in profiled.flames["fused/16"].children
        for node in child.children
        if node.name == "layers.0"
    )
    parts = [part.name for part in layer.children]
    assert parts == (["gemm", "epilogue"] if shape == "geglu" else ["gemm"])  # relu is part of the tile


def test_the_kernel_alone_is_timed_beside_the_module(profiled):
    for each in profiled.points:
        if each.variant == "fused":
            assert 0 < each.kernel_us < each.time_us
        else:
            assert each.kernel_us is None


def test_a_flame_is_of_the_median_pass():
    def span(name, start, us, category):
        return {"ph": "X", "name": name, "ts": start, "dur": us, "tid": 1, "cat": category}

    events = []
    for start, us in ((0.0, 12.0), (100.0, 90_000.0), (100_000.0, 10.0)):
        events += [span("forward", start, us, "user_annotation"), span("aten::mul", start, us - 2, "cpu_op")]
    flame = flame_of({"traceEvents": events})
    assert (flame.us, flame.count) == (12.0, 1)
    assert [(child.name, child.us, child.count) for child in flame.children] == [("aten::mul", 10.0, 1)]


def test_flames_add_up(profiled):
    for flame in profiled.flames.values():
        assert flame.count == 1
        assert sum(child.us for child in flame.children) <= flame.us
        stack = list(flame.children)
        while stack:
            node = stack.pop()
            # Spans are printed to a thousandth of a microsecond.
            assert sum(child.us for child in node.children) <= node.us + 0.01 * (1 + len(node.children))
            stack += node.children


def test_a_guess_is_compared_with_what_was_found(profiled, shape):
    found = compare(parse_expectation("ops=7, launches=5,fused.launches=1"), profiled.points)
    assert [(each.variant, each.what, each.right) for each in found if each.batch == 1] == [
        ("eager", "ops", False),
        ("eager", "launches", True),
        ("fused", "launches", True),
    ]


@pytest.mark.parametrize("text", ["", "ops", "ops=x", "ops=-1", "flops=3", "slow.ops=1", "ops=1,,"])
def test_a_guess_that_cannot_be_read_is_refused(text):
    with pytest.raises(ProfileError, match="expect: expected NAME=NUMBER pairs"):
        parse_expectation(text)


def test_a_variant_that_fails_leaves_the_others_alone(monkeypatch):
    def fail(module):
        raise RuntimeError("No working C++ compiler found\nand a page more")

    monkeypatch.setattr("fused_mlp.kernels.profile.variants._compiled", fail)
    found = profile(SHAPES["relu"], Options(batches=(2,), budget_s=0.01))
    assert found.failures == {"compile": "No working C++ compiler found"}
    assert [point.variant for point in found.points] == ["eager", "fused"]


def test_cuda_without_a_device_is_refused_in_one_line():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    for device in ("cuda", "cuda:1"):
        with pytest.raises(ProfileError, match=f"device {device}: torch sees no CUDA device here"):
            profile(SHAPES["relu"], Options(device=device))


def test_gpu_by_number_is_the_current_one_while_it_is_profiled(monkeypatch):
    """Recorded in place of a GPU: all that is profiled as `cuda` runs on torch's current one."""
    current = [0]

    @contextmanager
    def device(index):
        current.append(index)
        yield
        current.pop()

    def profiled(mlp, options, progress):
        assert (options.device, current[-1]) == ("cuda", 1)
        return template

    template = profile(SHAPES["relu"], Options(batches=(1,), variants=("eager",), budget_s=0.01))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr("fused_mlp.kernels.profile.run._profile", profiled)
    assert profile(SHAPES["relu"], Options(device="cuda:1")).device == "cuda:1"
    with pytest.raises(KernelUnavailable, match="got 'cuda:2', torch sees cuda:0 to cuda:1"):
        profile(SHAPES["relu"], Options(device="cuda:2"))
