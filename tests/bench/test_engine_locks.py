# SPDX-License-Identifier: Apache-2.0
"""What bench.engine_locks reads from the program that it runs."""

from __future__ import annotations

import pytest

from bench.engine_locks import read
from bench.summary import medians

REQUEST = (
    "by workers   8 threads,  4 at once: per request  1.05 locks, held  456.0 ns, waited    129.0 ns; per batch held "
    "{} ns; a hold: median   300 ns, p99    900 ns; 3 descheduled\n"
)
CHOICE = "taking a batch,  1000 lanes ready,    1 connections each: held      190 ns\n"


def test_the_median_of_each_line_is_kept() -> None:
    found = medians([read(REQUEST.format(held) + CHOICE) for held in ("10.0", "2479.0", "30.5")])
    assert found == {
        "requests": [
            {"where": "by workers", "threads": 8, "burst": 4, "locks": 1.05, "held_ns": 456, "waited_ns": 129}
            | {"batch_ns": 30.5}
        ],
        "choices": [{"lanes": 1000, "connections": 1, "held_ns": 190}],
    }


def test_a_line_of_another_form_is_not_left_out_in_silence() -> None:
    with pytest.raises(ValueError, match="understood 1 of"):
        read(CHOICE + CHOICE.replace("held", "kept"))
