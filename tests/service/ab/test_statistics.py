# SPDX-License-Identifier: Apache-2.0
"""Quantiles of blocks, and the interval of their ratio."""

from __future__ import annotations

import numpy as np
import pytest

from fused_mlp.service.ab.bootstrap import Buckets, Samples, per, ratios
from fused_mlp.service.ab.report import Difference, Report, latency_rows
from fused_mlp.service.reports.svg import linear_ticks
from fused_mlp.service.reports.units import seconds_text

SHARES = (0.5, 0.9, 0.99)


def latencies(rng, blocks=30, each=200, scale=1.0):
    """Blocks with different levels, as on a busy machine."""
    return [scale * rng.lognormal(-7, 0.5, each) * rng.uniform(0.9, 1.1) for _ in range(blocks)]


def test_quantiles_of_samples_are_those_of_numpy():
    blocks = latencies(np.random.default_rng(0), each=101)
    expected = np.quantile(np.concatenate(blocks), SHARES, method="inverted_cdf")
    assert Samples(blocks).quantiles(SHARES) == pytest.approx(expected)


def test_a_block_counted_twice_is_a_block_that_came_twice():
    a, b = latencies(np.random.default_rng(1), blocks=2)
    weighted = Samples([a, b]).quantiles(SHARES, np.array([2.0, 1.0]))
    assert weighted == pytest.approx(Samples([a, b, a]).quantiles(SHARES))


def test_quantiles_of_buckets_are_interpolated_as_prometheus_does():
    buckets = Buckets([1, 2, 4], np.array([[0, 10, 0, 0], [0, 0, 10, 0]]))
    assert buckets.quantiles([0.25, 0.5, 0.75, 1]) == pytest.approx([1.5, 2, 3, 4])
    beyond = Buckets([1, 2, 4], np.array([[0, 0, 0, 5]]))
    assert beyond.quantiles([0.5]) == pytest.approx([4])  # what lies beyond the last bound is not known


def test_nothing_has_no_quantile():
    assert np.isnan(Buckets([1, 2], np.zeros((3, 3))).quantiles([0.5])).all()
    assert np.isnan(Samples([np.array([])]).quantiles([0.5])).all()


def test_interval_holds_the_true_ratio():
    rng = np.random.default_rng(2)
    rows = latency_rows("latency", Samples(latencies(rng)), Samples(latencies(rng, scale=1.5)))
    for row in rows:
        assert row.ratio is not None
        assert row.ratio.low < 1.5 < row.ratio.high
        assert not row.ratio.is_noise


def test_equal_variants_are_within_noise_about_as_often_as_promised():
    rng = np.random.default_rng(3)
    noise = [
        latency_rows("x", Samples(latencies(rng, each=60)), Samples(latencies(rng, each=60)))[
            0
        ].ratio.is_noise
        for _ in range(40)
    ]
    # 95 % of them; a bootstrap of 30 blocks is a little too sure of itself, and 40 tries are few.
    assert sum(noise) >= 33


def test_cost_is_the_whole_over_the_whole():
    (ratio,) = ratios(
        per(np.array([1.0, 3.0]), np.array([10.0, 10.0])),
        per(np.array([4.0, 4.0]), np.array([10.0, 10.0])),
        2,
    )
    assert ratio.value == pytest.approx(2)
    assert ratios(per(np.zeros(2), np.zeros(2)), per(np.ones(2), np.ones(2)), 2) == [None]


def report(fused_scale=1.0, unfused_scale=1.0, problems=()):
    rng = np.random.default_rng(4)
    fused, unfused = (Samples(latencies(rng, scale=s)) for s in (fused_scale, unfused_scale))
    rows = tuple(latency_rows("latency", fused, unfused))
    return Report("t", {}, rows, Difference(1e-7, None, 5), tuple(problems), (), {}, {})


@pytest.mark.parametrize(
    ("fused", "unfused", "words"),
    [
        (1, 1.5, "Fused is 1.5"),
        (1.5, 1, "Unfused is 1.5"),
        (1, 1.0, "No difference beyond noise at the median"),
        (1, 1.06, "% faster than unfused"),
    ],
)
def test_verdict_names_the_faster_variant_or_noise(fused, unfused, words):
    assert words in report(fused, unfused).verdict


def test_verdict_of_a_run_that_is_not_valid_says_only_that():
    broken = report(1, 3, ["the client slept"])
    assert broken.verdict == "Not valid: the client slept."
    assert broken.as_json()["valid"] is False


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.2e-6, "4.2 us"), (812e-6, "812 us"), (999.7e-6, "1 ms"), (1.734e-3, "1.73 ms"), (2.5, "2.5 s")],
)
def test_times_have_three_digits_and_a_unit(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (29.5, [0, 10, 20]),
        (60.0, [0, 20, 40, 60]),
        (9e-4, [0, 2e-4, 4e-4, 6e-4, 8e-4]),
    ],
)
def test_axes_are_marked_at_round_numbers(high, expected):
    assert linear_ticks(high) == pytest.approx(expected)
