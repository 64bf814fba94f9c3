# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: no error on its console, nothing fetched, no sideways scrolling, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fused_mlp.kernels.profile import (
    Options,
    Sweep,
    SweepCell,
    compare,
    parse_expectation,
    profile,
    random_mlp,
)
from fused_mlp.service.reports.profile.html_report import html_report
from tests.support.browser import LAPTOP, PHONE, open_browser, resize

MADE = {
    "date": "2030-01-02 03:04 UTC",
    "machine": "M1, 2 cores",
    "version": "9.9",
    "command": "fused-mlp profile <&>",
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = Options(batches=(1, 8), variants=("eager", "fused"), budget_s=0.01)
    found = profile(random_mlp([24, 48, 24], "gelu", gated=True), options)
    cells = tuple(SweepCell(batch, width, 40.0, 10.0 * batch) for batch in (1, 8) for width in (64, 512))
    guesses = compare(parse_expectation("ops=7,launches=5"), found.points)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html_report(found, MADE, guesses, Sweep("24-48-24 gated gelu", 1, cells)))
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = open_browser("performance")
    yield driver
    driver.quit()


def test_opens_without_an_error_and_fetches_nothing(browser: Any, page: Path) -> None:
    browser.get(page.as_uri())
    assert browser.get_log("browser") == []
    asked = [
        entry["message"]
        for entry in browser.get_log("performance")
        if 'requestWillBeSent"' in entry["message"]
    ]
    assert [message for message in asked if "file://" not in message and "data:," not in message] == []
    assert browser.execute_script("return document.querySelectorAll('svg').length") >= 7
    text = browser.find_element("tag name", "body").text
    assert all(words in text for words in MADE.values())  # and the command escaped, not markup


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_fits_the_screen(browser: Any, page: Path, size: tuple[int, int]) -> None:
    resize(browser, size)
    browser.get(page.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    wide = "return [...document.querySelectorAll('table')].filter(t => t.scrollWidth > t.parentElement.clientWidth)"
    assert browser.execute_script(wide) == []  # flame graphs may scroll, figures are all in sight
    cut = "return [...document.querySelectorAll('td')].filter(c => c.scrollWidth > c.clientWidth)"
    assert browser.execute_script(cut) == []


def test_is_dark_where_the_system_is(browser: Any, page: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        resize(browser, LAPTOP, dark=scheme == "dark")
        browser.get(page.as_uri())
        colours[scheme] = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert colours == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}
