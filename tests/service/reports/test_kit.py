# SPDX-License-Identifier: Apache-2.0
"""The kit that all reports share: one colour per variant, round ticks, and no server packages for `fused-mlp ab`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fused_mlp.kernels.profile.results import Flame
from fused_mlp.service.ab.report import Report
from fused_mlp.service.observe.live_page import live_page
from fused_mlp.service.reports.ab.html_report import html_report
from fused_mlp.service.reports.profile.flame_graph import flame_graph
from fused_mlp.service.reports.style import VARIANT_COLOURS
from fused_mlp.service.reports.svg import Axis, log_ticks

DRAWN = {
    "ab": html_report(Report("t", {}, (), None, (), (), {}, {})),
    "flame graph": flame_graph(Flame("forward", 10.0, 1), 10.0, "t", alone=True),
    "live": live_page().body.decode(),
}


@pytest.mark.parametrize("text", DRAWN.values(), ids=DRAWN)
@pytest.mark.parametrize("variant", VARIANT_COLOURS)
def test_a_variant_has_the_same_colours_everywhere(text: str, variant: str) -> None:
    for colour in (VARIANT_COLOURS[variant].light, VARIANT_COLOURS[variant].dark):
        assert text.count(f"--{variant}:{colour};") == 1
    assert f".{variant}{{--own:var(--{variant})}}" in text


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (9.0, 25.0, [10, 15, 20]),
        (10.0, 400.0, [10, 20, 50, 100, 200]),
        (0.9, 30_000.0, [1, 10, 100, 1000, 10_000]),
        (0.9, 1.4, [0.9, 1.0, 1.1, 1.2, 1.3, 1.4]),  # less than a factor of two: equal steps
    ],
)
def test_ticks_of_a_logarithmic_axis_are_round(low: float, high: float, expected: list[float]) -> None:
    assert log_ticks(low, high) == pytest.approx(expected)


def test_equal_factors_are_equal_distances_on_a_logarithmic_axis() -> None:
    x = Axis(1, 100, 0, 200, log=True)
    assert [x(value) for value in (1, 10, 100)] == pytest.approx([0, 100, 200])
    assert Axis(8, 8, 0, 200)(8) == 100  # a single value is drawn in the middle


def test_ab_and_its_reports_need_no_server_packages() -> None:
    """`fused-mlp ab --target` runs where only the client is installed."""
    code = (
        "import sys\n"
        "from fused_mlp.service.ab import live_run, recorded\n"
        "from fused_mlp.service.reports.ab import html_report, terminal\n"
        "heavy = ('torch', 'pydantic', 'prometheus_client', 'fused_mlp.kernels', 'fused_mlp.models')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
