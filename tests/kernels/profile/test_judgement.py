# SPDX-License-Identifier: Apache-2.0
"""A profile says when its times cannot be believed: others used the cores, or a part took longer than the whole."""

import os
import subprocess
import sys
import time

import pytest
from rich.console import Console

from fused_mlp.kernels.profile import Point, Profile
from fused_mlp.kernels.profile.regimes import judge
from fused_mlp.kernels.profile.results import Counts, Regime
from fused_mlp.kernels.profile.timing import OtherLoad
from fused_mlp.service.reports.profile.html_report import html_report
from fused_mlp.service.reports.profile.terminal import profile_view


def point(time_us: float, kernel_us: float | None) -> Point:
    counts = Counts({}, 0, {}, None, 0, 0, bytes_moved_known=True)
    return Point("fused", 8, time_us, time_us, counts, Regime("compute", 1, 1, 1, 1.0), 1.0, kernel_us)


def profile_with(**fields) -> Profile:
    points = (point(20.0, 8.0),)
    return Profile(
        "4-2", 10, "cpu", 1, {"cpu": "a processor"}, "2", 1e9, 1e9, "", (8,), points, {}, (), **fields
    )


def test_a_calm_machine_and_a_faster_kernel_need_no_word():
    assert judge({1: 0.0, 8: 0.04}, [point(20.0, 8.0), point(20.0, None)]) == ((), ())


def test_cores_that_others_use_make_it_invalid():
    (problem,), notes = judge({1: 0.1, 8: 0.5}, [])
    assert problem.startswith("other processes used the CPU: for 50% of the time at batch 8 no core was free")
    assert notes == ()


def test_a_little_load_is_noted():
    problems, (note,) = judge({1: 0.1}, [])
    assert problems == ()
    assert "for 10% of the time at batch 1" in note


@pytest.mark.parametrize(("kernel_us", "invalid"), [(20.2, False), (30.0, True)])
def test_a_kernel_slower_than_the_module_around_it_is_never_without_a_word(kernel_us, invalid):
    problems, notes = judge({}, [point(20.0, kernel_us)])
    (line,) = problems if invalid else notes
    assert f"batch 8: the kernel alone measured {kernel_us} us" in line
    assert not (notes if invalid else problems)


def test_busy_processes_are_seen():
    hogs = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    try:
        others = OtherLoad()
        end = time.perf_counter() + 0.4
        while time.perf_counter() < end:
            pass
        assert others.missing_share(threads=1) > 0.2
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def test_terminal_and_page_say_so():
    found = profile_with(problems=("the machine was busy",), notes=("a little",))
    console = Console(width=120)
    with console.capture() as shown:
        console.print(profile_view(found))
    page = html_report(found, {"command": "fused-mlp profile"})
    for text in (shown.get(), page):
        assert "Not valid: the machine was busy." in text
        assert "ote: a little" in text
