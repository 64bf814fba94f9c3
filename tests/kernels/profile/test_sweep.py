"""A sweep keeps what it measured, and goes on where it stopped."""

import json

import pytest

from kernels.profile import ProfileError, run_sweep


def sweep(path, **options):
    return run_sweep(path, **{"layers": 2, "batches": (1, 4), "widths": (8, 16), "budget_s": 0.001} | options)


class Interrupted(Exception):
    pass


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
