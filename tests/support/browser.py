# SPDX-License-Identifier: Apache-2.0
"""A real browser for tests: Debian's headless Chromium, driven by its own driver. Tests skip where there is none."""

from __future__ import annotations

import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

LAPTOP = (1280, 860)
PHONE = (390, 844)


def open_browser(*logs: str) -> webdriver.Chrome:
    """`logs`: those that are kept besides that of the console, such as "performance"."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("chromium or chromedriver is not installed; scripts/system-packages browser adds them")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", dict.fromkeys(("browser", *logs), "ALL"))
    # As root, which containers are, Chromium has no sandbox of its own; the page is ours.
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=Service(driver))


def resize(
    browser: webdriver.Chrome, size: tuple[int, int], *, dark: bool = False, height: int | None = None
) -> None:
    """The size of the page itself, which below some 500 pixels no window can have."""
    metrics = {"width": size[0], "height": height or size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
