"""The report in a real browser: no error on its console, nothing fetched, no sideways scrolling, light and dark."""

from __future__ import annotations

import shutil
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

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="chromium and its driver are not installed here"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = Options(batches=(1, 8), variants=("eager", "fused"), budget_s=0.01)
    found = profile(random_mlp([24, 48, 24], "gelu", gated=True), options)
    cells = tuple(SweepCell(batch, width, 40.0, 10.0 * batch) for batch in (1, 8) for width in (64, 512))
    guesses = compare(parse_expectation("ops=7,launches=5"), found.points)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(
        html_report(found, "fused-mlp profile <&>", guesses, Sweep("24-48-24 gated gelu", 1, cells))
    )
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,800"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
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
    assert "<&>" in browser.find_element("tag name", "body").text  # escaped, not markup


def test_fits_a_laptop(browser: Any, page: Path) -> None:
    browser.get(page.as_uri())
    width, inner = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= inner


def test_is_dark_where_the_system_is(browser: Any, page: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        browser.get(page.as_uri())
        colours[scheme] = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert colours == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}
