# SPDX-License-Identifier: Apache-2.0
"""A sweep keeps what it measured, and goes on where it stopped."""

import json

import pytest

from fused_mlp.kernels.profile import ProfileError, equally_wide, random_mlp, run_sweep
from fused_mlp.kernels.profile.timing import Time
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.spec import Concat, Linear, Slice


def sweep(path, **options):
    mlp = random_mlp([4, 9, 5], options.pop("activation", "relu"))
    return run_sweep(path, mlp, **{"batches": (1, 4), "widths": (8, 16), "budget_s": 0.001} | options)


class Interrupted(Exception):
    pass


def on_cpu(us):
    return Time(us, us)


@pytest.fixture
def quiet_machine(monkeypatch):
    """Times of a machine on which nothing else runs."""

    def time_calls(calls, budget_s):
        for call in calls.values():
            call()
        return {name: on_cpu(10.0) for name in calls}

    monkeypatch.setattr("fused_mlp.kernels.profile.sweep.time_calls", time_calls)


@pytest.mark.usefixtures("quiet_machine")
def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "sweep.json"
    seen = []

    def stop_after_three(done, total):
        seen.append((done, total))
        if done == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        sweep(path, progress=stop_after_three)
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4)]
    kept = json.loads(path.read_text())["cells"]
    assert len(kept) == 3

    seen.clear()
    found = sweep(path, progress=lambda *state: seen.append(state))
    assert seen == [(3, 4), (4, 4)]
    assert found.batches == [1, 4]
    assert found.widths == [8, 16]
    assert [vars(cell) for cell in found.cells[:3]] == kept
    assert all(cell.speedup > 0 for cell in found.cells)


def test_every_value_of_a_swept_program_has_the_width_of_its_cell():
    steps = [
        Linear(name="up", input="input", out_features=12),
        Concat(name="skip", inputs=("up", "input")),
        Slice(name="half", input="skip", start=6, stop=12),
        Linear(name="down", input="half", out_features=3),
    ]
    spec = MlpSpec(in_features=5, steps=steps)
    widths = [equally_wide(spec, width).widths_by_name for width in (1, 8)]
    for width, found in zip((1, 8), widths, strict=True):
        assert {found[name] for name in ("input", "up", "skip", "half", "down")} == {width}


def test_other_conditions_are_measured_anew(tmp_path):
    path = tmp_path / "sweep.json"
    sweep(path)
    states = []
    sweep(path, activation="gelu", progress=lambda *state: states.append(state))
    assert states[0] == (0, 4)


def test_a_file_of_something_else_is_not_overwritten(tmp_path):
    path = tmp_path / "sweep.json"
    path.write_text("[1, 2]")
    with pytest.raises(ProfileError, match="expected the results of a sweep, got something else"):
        sweep(path)
    assert path.read_text() == "[1, 2]"


@pytest.mark.parametrize(
    ("attempts", "speedup"),
    [
        ([(on_cpu(30.0), on_cpu(10.0))], 3.0),
        # A hiccup, whether the process slept or spun through it, is measured again.
        ([(Time(15_390.0, 40.0), on_cpu(10.0)), (on_cpu(30.0), on_cpu(10.0))], 3.0),
        ([(on_cpu(15_390.0), on_cpu(10.0)), (on_cpu(30.0), on_cpu(10.0))], 3.0),
        # What is found twice is so, however much it is.
        ([(on_cpu(500.0), on_cpu(10.0)), (on_cpu(510.0), on_cpu(10.0))], 50.0),
        # And a machine that stays busy says nothing.
        ([(Time(9_000.0, 40.0), on_cpu(10.0))] * 3, None),
        ([(on_cpu(9_000.0), on_cpu(10.0)), (on_cpu(2_000.0), on_cpu(10.0)), (on_cpu(500.0), on_cpu(10.0))], None),
    ],
)  # fmt: skip
def test_a_busy_moment_is_measured_again_and_never_kept(tmp_path, monkeypatch, attempts, speedup):
    left = [dict(zip(("eager", "fused"), each, strict=True)) for each in attempts]
    monkeypatch.setattr("fused_mlp.kernels.profile.sweep.time_calls", lambda calls, budget: left.pop(0))
    path = tmp_path / "sweep.json"
    (cell,) = sweep(path, batches=(1,), widths=(8,)).cells
    assert left == []
    assert cell.busy == (speedup is None)
    kept = json.loads(path.read_text())["cells"]
    if speedup is None:
        assert kept == []
    else:
        assert cell.speedup == pytest.approx(speedup)
        assert len(kept) == 1
