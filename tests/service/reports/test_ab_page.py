# SPDX-License-Identifier: Apache-2.0
"""The page of `fused-mlp ab` in a real browser: no error on its console, no sideways scrolling, readable on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver import Chrome

from fused_mlp.service.ab.bootstrap import Samples
from fused_mlp.service.ab.report import Difference, Report, distribution, latency_rows
from fused_mlp.service.reports.ab.html_report import html_report
from tests.support.browser import LAPTOP, PHONE, open_browser, resize


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    fused, unfused = (
        Samples([scale * rng.lognormal(-7, 0.5, 100) for _ in range(10)]) for scale in (1.0, 1.5)
    )
    report = Report(
        title="ranker/3 on <ranker>.internal:8001",
        facts={"load": "400 requests/s of 8 row(s), open loop, random arrivals"},
        rows=tuple(latency_rows("latency", fused, unfused)),
        difference=Difference(1e-7, 2e-7, 64),
        problems=(),
        notes=("CPU per request is not known",),
        distribution={"fused": distribution(fused), "unfused": distribution(unfused)},
        timeline={"fused": [(0.0, 9e-4), (2.0, 1e-3)], "unfused": [(1.0, 1.4e-3), (3.0, 1.5e-3)]},
    )
    path = tmp_path_factory.mktemp("ab") / "report.html"
    path.write_text(html_report(report))
    return path


@pytest.fixture(scope="module")
def browser(page: Path) -> Iterator[Chrome]:
    browser = open_browser()
    try:
        browser.get(page.as_uri())
        yield browser
    finally:
        browser.quit()


def test_opens_without_an_error_and_shows_everything(browser: Chrome) -> None:
    assert browser.get_log("browser") == []
    text = browser.find_element("tag name", "body").text
    for words in (
        "<ranker>.internal",
        "Fused is 1.",
        "latency p99",
        "open loop",
        "CPU per request is not known",
    ):
        assert words in text
    assert len(browser.find_elements("css selector", "polyline.line")) == 2
    assert len(browser.find_elements("css selector", "circle.dot:is(.fused, .unfused)")) == 4


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_fits_the_screen(browser: Chrome, size: tuple[int, int]) -> None:
    resize(browser, size)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    wide = (
        "return [...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth).length"
    )
    assert browser.execute_script(wide) == 0  # the table fits too: no figure is hidden
    heights = "return [...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)"
    assert min(browser.execute_script(heights)) >= 9
