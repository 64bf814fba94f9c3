# SPDX-License-Identifier: Apache-2.0
"""The plots of the docs: drawn from the stored results, the same bytes each time, in two themes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib import rc_context
from matplotlib.text import Text

from bench.docs.registry import Results
from bench.plots.__main__ import IMAGES, PLOTS, THEMES, draw, main
from bench.plots.theme import Theme, as_svg, spread

MAX_BYTES = 40_000  # a picture that a page loads at once


def test_every_plot_is_as_it_would_be_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--check"])
    assert code == 0, capsys.readouterr().out + "run python -m bench.plots"


def test_plots_are_small_and_well_formed() -> None:
    for path in (IMAGES / f"{name}-{theme}.svg" for name in PLOTS for theme in THEMES):
        text = path.read_text()
        assert len(text) < MAX_BYTES
        root = ElementTree.fromstring(text)
        assert root.find("{http://www.w3.org/2000/svg}title") is not None


def test_text_stays_inside_the_picture() -> None:
    theme = Theme("light")
    for name, (plot, _) in PLOTS.items():
        with rc_context(theme.settings):
            figure = plot(Results(), theme)
            figure.draw_without_rendering()
            whole = figure.bbox
            for text in figure.findobj(Text):
                if text.get_visible() and text.get_text():
                    taken = text.get_window_extent()
                    assert 0 <= taken.x0 < taken.x1 <= whole.x1, (name, text)
                    assert 0 <= taken.y0 < taken.y1 <= whole.y1, (name, text)


def test_labels_are_moved_apart_in_their_order() -> None:
    moved = spread([10, 11, 50], 8)
    assert moved[1] - moved[0] == pytest.approx(8)
    assert moved[2] > moved[1] + 8
    assert sum(moved) == pytest.approx(71)


def test_text_is_escaped() -> None:
    theme = Theme("dark")
    with rc_context(theme.settings):
        text = as_svg(theme.figure(1, "p50 & p99"), "a < b")
    assert "p50 &amp; p99" in text
    assert "<title>a &lt; b</title>" in text


def test_results_that_a_folder_lacks_are_those_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PLOTS.keys() - {"latency", "overload"}:
        monkeypatch.delitem(PLOTS, name)
    results = tmp_path / "results"
    results.mkdir()
    serving = Results()["serving"]
    sample = {"latency_ms": {"25": 0.5, "50": 1.0, "99": 2.0, "99.9": 4.0}}
    for systems in serving["models"].values():
        for loads in systems.values():
            for found in loads.values():
                found.update(sample)
    (results / "serving.json").write_text(json.dumps(serving))
    drawn = draw(results, tmp_path / "img")
    assert len(drawn) == len(PLOTS) * len(THEMES)
    assert "p99.9" in (tmp_path / "img" / "latency-light.svg").read_text()
