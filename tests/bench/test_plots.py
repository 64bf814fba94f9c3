# SPDX-License-Identifier: Apache-2.0
"""The plots of the docs: drawn from the stored results, the same bytes each time, in two themes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.docs.registry import Results
from bench.plots.__main__ import PLOTS, THEMES, draw, main, pictures
from bench.plots.svg import Drawing, spread

MOST_BYTES = 40_000  # a picture that a page loads at once


def test_every_plot_is_as_it_would_be_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--check"])
    assert code == 0, capsys.readouterr().out + "run python -m bench.plots"


def test_plots_are_small_well_formed_and_the_same_each_time() -> None:
    first, second = pictures(Results()), pictures(Results())
    assert first == second
    assert set(first) == {f"{name}-{theme}.svg" for name in PLOTS for theme in THEMES}
    for text in first.values():
        assert len(text) < MOST_BYTES
        root = ElementTree.fromstring(text)
        assert root.find("{http://www.w3.org/2000/svg}title") is not None


def test_text_stays_inside_the_picture() -> None:
    for name, text in pictures(Results()).items():
        root = ElementTree.fromstring(text)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for element in root.iter("{http://www.w3.org/2000/svg}text"):
            length = 0.52 * float(element.attrib["font-size"]) * len(element.text or "")
            x, y = float(element.attrib["x"]), float(element.attrib["y"])
            start = {"start": x, "middle": x - length / 2, "end": x - length}[element.attrib["text-anchor"]]
            assert start >= -4, (name, element.text)
            assert start + length <= width + 4, (name, element.text)
            assert 0 < y < height, (name, element.text)


def test_labels_are_moved_apart_in_their_order() -> None:
    moved = spread([10, 11, 50], 8)
    assert moved[1] - moved[0] == pytest.approx(8)
    assert moved[2] > moved[1] + 8
    assert sum(moved) == pytest.approx(71)


def test_text_is_escaped() -> None:
    picture = Drawing(10, 10, "light", "a < b")
    picture.text(1, 1, "p50 & p99")
    assert "p50 &amp; p99" in str(picture)
    assert "a &lt; b" in str(picture)


def test_results_that_a_folder_lacks_are_those_stored(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    serving = Results()["serving"]
    sample = {"latency_ms": {"25": 0.5, "50": 1.0, "99": 2.0, "99.9": 4.0}}
    for systems in serving["models"].values():
        for loads in systems.values():
            for samples in loads.values():
                samples[:] = [{**each, **sample} for each in samples]
    (results / "serving.json").write_text(json.dumps(serving))
    drawn = draw(results, tmp_path / "img")
    assert len(drawn) == len(PLOTS) * len(THEMES)
    assert "p99.9" in (tmp_path / "img" / "latency-light.svg").read_text()
