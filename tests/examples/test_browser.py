# SPDX-License-Identifier: Apache-2.0
"""The web page of examples/rest_browser in a real browser: it may call the server; from another origin it may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from fused_mlp.service.fronts.selection import native_front_problem
from tests.examples.running import running
from tests.support.browser import open_browser

PATIENCE_S = 30

if problem := native_front_problem():
    pytest.skip(problem, allow_module_level=True)


def test_page_shows_what_the_server_answers(tmp_path: Path) -> None:
    with running("rest_browser", tmp_path) as session:
        assert (
            f"access-control-allow-origin: http://127.0.0.1:{session.ports[8080]}"
            in session.printed().lower()
        )
        server = f"?server=http://127.0.0.1:{session.ports[8000]}"
        browser = open_browser()
        try:

            def answer_at(host: str) -> str:
                """What the page says about its example, when it comes from this host."""
                browser.get(f"http://{host}:{session.ports[8080]}/{server}")
                shown = browser.find_element(By.ID, "answer")
                before = shown.text
                browser.find_element(By.ID, "example").click()
                WebDriverWait(browser, PATIENCE_S).until(lambda _: shown.text != before)
                return shown.text

            assert answer_at("127.0.0.1").startswith("This is a 4, with a probability of 9")
            assert answer_at("localhost").startswith("No answer from")  # another origin
        finally:
            browser.quit()
