# SPDX-License-Identifier: Apache-2.0
"""The classifier and its advice on made-up times, where the answer is plain."""

from dataclasses import replace

import pytest

from fused_mlp.kernels.profile import Point
from fused_mlp.kernels.profile.regimes import advise, classify
from fused_mlp.kernels.profile.results import Counts

NOTHING = Counts({}, 0, {}, None, 0, 0, True)


def point(
    variant: str, time_us: float, *, overhead=1.0, memory=1.0, compute=1.0, eager_us: float | None = None
):
    regime = classify(time_us, overhead, memory, compute)
    speedup = 1.0 if eager_us is None else eager_us / time_us
    return Point(variant, 1, time_us, time_us, NOTHING, regime, speedup)


@pytest.mark.parametrize(
    ("times", "name", "reached"),
    [
        ({"overhead_us": 30, "memory_us": 2, "compute_us": 1}, "overhead", 0.75),
        ({"overhead_us": 3, "memory_us": 36, "compute_us": 10}, "memory", 0.9),
        ({"overhead_us": 3, "memory_us": 20, "compute_us": 38}, "compute", 0.95),
        # A limit that was measured a little low is still a limit, not more than all of the time.
        ({"overhead_us": 1, "memory_us": 1, "compute_us": 50}, "compute", 1.0),
    ],
)
def test_the_largest_of_the_three_bounds_it(times, name, reached):
    regime = classify(40.0, **times)
    assert regime.name == name
    assert regime.reached == pytest.approx(reached)


def test_dispatch_bound_says_what_fusing_removes():
    eager = point("eager", 42.0, overhead=33.0, memory=9.2, compute=3.0)
    fused = point("fused", 11.0, eager_us=42.0)
    assert advise(eager, fused) == (
        "batch 1 is dispatch-bound in eager: 78% of its time is not arithmetic; fusing removes 31 of 42 us (3.8x)"
    )


def test_memory_bound_says_what_reading_takes():
    eager = point("eager", 2000.0, overhead=30.0, memory=1200.0, compute=100.0)
    fused = point("fused", 850.0, eager_us=2000.0)
    assert "memory-bound in eager: reading the weights takes 1,200 of 2,000 us" in advise(eager, fused)


def test_compute_bound_at_the_peak_has_nothing_to_gain():
    eager = point("eager", 10_000.0, compute=9_500.0)
    fused = point("fused", 9_800.0, eager_us=10_000.0)
    assert advise(eager, fused) == (
        "batch 1 is compute-bound in eager, at 95% of the machine's peak; fusing changes little (1.02x): there is no "
        "overhead left to remove"
    )


def test_far_from_every_limit_it_blames_none_of_them():
    eager = point("eager", 1000.0, overhead=35.0, memory=60.0, compute=240.0)
    fused = point("fused", 400.0, eager_us=1000.0)
    assert advise(eager, fused) == (
        "batch 1 is at no limit in eager: of 1,000 us calling explains 35, reading and arithmetic 240, the rest is how "
        "eager computes; fusing removes 600 of 1,000 us (2.5x)"
    )


def test_what_the_torch_module_costs_is_told_apart_from_the_kernel():
    eager = point("eager", 36.0, overhead=32.0)
    fused = replace(point("fused", 12.6, eager_us=36.0), kernel_us=2.4)
    assert advise(eager, fused).endswith("(2.9x); called from torch 12.6 us, in the service 2.4 us")


def test_where_it_is_slower_it_says_so_and_names_what_is_faster():
    eager = point("eager", 100.0, compute=90.0)
    assert "do not fuse here: it takes 2.0x as long" in advise(eager, point("fused", 200.0, eager_us=100.0))
    compiled = point("compile", 50.0, eager_us=100.0)
    told = advise(eager, point("fused", 80.0, eager_us=100.0), compiled)
    assert told.endswith("torch.compile is faster still (2.0x)")
    assert advise(eager, None).endswith("there is no fused kernel to compare it with")
