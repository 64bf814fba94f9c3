# SPDX-License-Identifier: Apache-2.0
"""A profile of a program that is no chain: its steps by name, their costs, the kernel's phases under these names."""

import numpy as np
import pytest

from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.kernels.profile import Options, profile
from fused_mlp.kernels.profile.cpu_phases import PhaseSpan, Recording, merge, step_times
from fused_mlp.kernels.profile.machine import Limits
from fused_mlp.kernels.profile.shapes import narrow_twin, random_rows, resized, with_random_weights
from fused_mlp.kernels.profile.step_costs import step_costs
from fused_mlp.kernels.profile.trace_events import forward_passes
from fused_mlp.kernels.work import work_of
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.spec import Combine, Concat, Elementwise, Linear, Norm, Output, Slice, Softmax
from tests.support.random_programs import random_mlp

# A residual block, a skip and two heads.
SPEC = MlpSpec(
    in_features=24,
    steps=[
        Norm(name="blocks.0.norm", input="input", kind="layer"),
        Linear(name="blocks.0.fc1", input="blocks.0.norm", out_features=48),
        Elementwise(name="blocks.0.act", input="blocks.0.fc1", function="gelu"),
        Linear(name="blocks.0.fc2", input="blocks.0.act", out_features=24),
        Combine(name="blocks.0.sum", op="add", inputs=("input", "blocks.0.fc2")),
        Concat(name="skip", inputs=("blocks.0.sum", "input")),
        Slice(name="half", input="skip", start=12, stop=36),
        Linear(name="pi", input="half", out_features=6),
        Softmax(name="policy", input="pi"),
        Linear(name="v", input="half", out_features=1),
    ],
    outputs=[Output(name="pi", value="policy"), Output(name="v", value="v", squeeze=True)],
)
ROWS = ["blocks.0.norm", "blocks.0.fc1", "blocks.0.fc2", "skip", "half", "pi", "policy", "v"]


@pytest.fixture(scope="module")
def profiled():
    options = Options(batches=(1, 4), variants=("eager", "fused"), budget_s=0.01)
    return profile(with_random_weights(SPEC), options)


def test_eager_runs_a_launch_for_every_step_that_computes(profiled):
    assert profiled.failures == {}
    for batch in (1, 4):
        launches = profiled.point("eager", batch).counts.launches
        assert launches["aten::addmm"] == 4
        assert launches["aten::native_layer_norm"] == 1
        assert launches["aten::gelu"] == launches["aten::add"] == launches["aten::cat"] == 1


def test_steps_are_told_by_name_with_what_their_product_finishes(profiled):
    assert profiled.model.startswith("24 -> ln -> 48 gelu -> 24 -> + -> ")
    for batch in (1, 4):
        steps = [step for step in profiled.steps if step.batch == batch]
        assert [step.name for step in steps] == ROWS
        assert [step.what for step in steps[:3]] == ["ln", "48 gelu", "24 +"]
        assert steps[1].flops == batch * (2 * 24 * 48 + 48 + 48)  # the product, the bias, gelu
        assert steps[1].weight_bytes == 4 * (24 * 48 + 48)
        assert all(step.limit_us > 0 for step in steps if step.what not in ("concat", "[12:36]"))


def test_the_fused_kernel_times_its_operations_by_the_names_of_steps(profiled):
    for batch in (1, 4):
        times = {step.name: step.fused_us for step in profiled.steps if step.batch == batch}
        for name in ("blocks.0.norm", "blocks.0.fc1", "blocks.0.fc2", "pi", "policy"):
            assert times[name] > 0
        assert times["half"] is None  # a part of another value: there is nothing to do
    assert profiled.point("fused", 4).counts.launches == {"fused_mlp::mlp": 1}


def test_the_limit_of_a_step_is_its_arithmetic_or_its_weights():
    limits = Limits(flops_per_s=1e9, read_s=1.0, weight_bytes=10**9)
    few, many = (step_costs(SPEC, work_of(SPEC), batch, limits, {})[1] for batch in (1, 1000))
    assert few.limit_us == pytest.approx(4.8)  # reading 4,800 bytes at 1 GB/s
    assert many.limit_us == pytest.approx(many.flops / 1e3)


def test_times_of_the_kernel_are_those_of_the_whole_row():
    limits = Limits(flops_per_s=1e9, read_s=1.0, weight_bytes=10**9)
    times = {"blocks.0.fc1": 2.0, "blocks.0.act": 0.5, "policy": 3.0, "pi, v": 1.0}
    costs = {cost.name: cost.fused_us for cost in step_costs(SPEC, work_of(SPEC), 1, limits, times)}
    assert costs["blocks.0.fc1"] == 2.5
    assert costs["policy"] == 3.0
    assert costs["pi"] == 1.0
    assert costs["v"] is None


def span(phase, operation, start_us, us):
    times = (int(start_us * 1000), int((start_us + us) * 1000))
    return PhaseSpan(phase, operation, 7, 4, 24, 48, *times, 0, 0, 0, 0)


def trace_of(*passes):
    events = []
    for start, us in passes:
        events += [
            {"ph": "X", "name": "forward", "cat": "user_annotation", "ts": start, "dur": us, "tid": 7, "pid": 1},
            {"ph": "X", "name": "fused_mlp::mlp", "cat": "cpu_op", "ts": start, "dur": us, "tid": 7, "pid": 1},
        ]  # fmt: skip
    return {"traceEvents": events}


def test_phases_are_named_after_their_steps():
    trace = trace_of((0.0, 100.0), (200.0, 100.0), (400.0, 100.0))
    spans = [
        each
        for start, us in ((0, 10), (200, 90), (400, 20))
        for each in (span("layer", 0, start, us / 2), span("norm", 1, start + 50, us / 4))
    ]
    merge(trace, Recording(spans), "blocks", ["blocks.0.fc1", "forward"])
    assert step_times(trace) == {"blocks.0.fc1": 10.0, "forward": 5.0}  # of the median pass
    assert len(forward_passes(trace)) == 3  # a step may be called what it likes


def test_an_operation_without_a_name_has_a_number():
    trace = trace_of((0.0, 100.0))
    merge(trace, Recording([span("combine", 3, 1, 2)]), "", ["a"])
    assert step_times(trace) == {"operation 3": 2.0}


def test_the_narrow_twin_runs_the_same_steps():
    twin = narrow_twin(SPEC).spec
    assert twin.widths_by_name["blocks.0.fc1"] == 16
    assert twin.widths_by_name["v"] == 1
    assert [step.op for step in twin.steps if step.op != "slice"] == [
        step.op for step in SPEC.steps if step.op != "slice"
    ]


@pytest.mark.parametrize("seed", range(300, 320))
def test_rankers_have_a_narrow_twin_too(seed):
    mlp = random_mlp(seed, steps=4 + seed % 25, tables=True)
    twin = narrow_twin(mlp.spec)
    assert twin.spec.record[-1].stop == mlp.spec.in_features
    for step in mlp.spec.steps:
        assert twin.spec.widths_by_name[step.name] == min(16, mlp.spec.widths_by_name[step.name])
    y = np.empty((3, twin.spec.out_features), np.float32)
    CpuKernel(twin, 1).run(random_rows(twin.spec, 3).numpy(), y)


@pytest.mark.parametrize("width", [1, 7, 64])
def test_any_program_can_have_any_width(width):
    made = resized(SPEC, lambda _: width)
    assert made.in_features == width
    assert all(made.widths_by_name[step.name] == width for step in SPEC.steps)
