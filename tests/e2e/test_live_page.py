# SPDX-License-Identifier: Apache-2.0
"""The live page in a real browser, on a real server with a split and a shadow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.support.wait import WebDriverWait

from fused_mlp.service.ab.bootstrap import Buckets
from fused_mlp.service.client import Client
from tests.support.browser import LAPTOP, PHONE, open_browser, resize
from tests.support.server import Server

REQUESTS = 200
VARIANTS = ("fused", "unfused")


@pytest.fixture(scope="module")
def live() -> Iterator[Server]:
    with Server(split=0.25, shadow=0.5) as running:
        yield running


@pytest.fixture(scope="module")
def page(live: Server) -> Iterator[Chrome]:
    browser = open_browser()
    try:
        resize(browser, LAPTOP)
        browser.get(live.metrics_url + "/")
        yield browser
    finally:
        browser.quit()


def wait(page: Chrome, script: str) -> object:
    return WebDriverWait(page, 20, 0.1).until(lambda _: page.execute_script(f"return {script}"))


def shown(page: Chrome, variant: str, key: str) -> float:
    selector = f'[data-variant="{variant}"] [data-key="{key}"]'
    return float(page.execute_script(f"return document.querySelector('{selector}').dataset.value"))


def histogram(server: Server, variant: str) -> Buckets:
    pattern = rf'request_duration_seconds_bucket\{{le="([^"]*)".*variant="{variant}".*\}} (\S+)'
    found = [(float(le), float(n)) for le, n in re.findall(pattern, server.get("/metrics")[1])]
    counts = np.diff([n for _, n in found], prepend=0)
    return Buckets([le for le, _ in found[:-1]], counts[np.newaxis])


def console_errors(page: Chrome) -> list[dict[str, str]]:
    return [entry for entry in page.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def test_says_what_to_do_before_there_is_traffic(page: Chrome) -> None:
    text = str(wait(page, "document.querySelector('#latency .empty')?.textContent"))
    assert "No traffic yet" in text
    assert "fused-mlp predict digits --example" in text


def test_numbers_are_those_of_the_metrics(live: Server, page: Chrome) -> None:
    with Client(live.target) as client, ThreadPoolExecutor(4) as callers:
        example = np.asarray(client.model("digits").versions[-1].example, np.float32)
        for _ in callers.map(lambda _: client.predict("digits", example), range(REQUESTS)):
            pass
    page.execute_script("document.querySelector('#windows input[value=Infinity]').click()")
    wait(
        page,
        f"document.querySelector('[data-variant=fused] [data-key=requests]').dataset.value >= {0.75 * REQUESTS}",
    )
    assert [shown(page, v, "requests") for v in VARIANTS] == [0.75 * REQUESTS, 0.25 * REQUESTS]
    for variant in VARIANTS:
        expected = histogram(live, variant).quantiles([0.5, 0.99])
        assert [shown(page, variant, key) for key in ("p50", "p99")] == pytest.approx(expected)
        assert shown(page, variant, "failed") == 0
    medians = [histogram(live, v).quantiles([0.5])[0] for v in VARIANTS]
    speedup = float(page.execute_script("return document.querySelector('#speedup').dataset.value"))
    assert speedup == pytest.approx(medians[1] / medians[0])


def test_everything_is_drawn(live: Server, page: Chrome) -> None:
    for chart in ("latency", "batches"):
        bars = page.execute_script(f"return document.querySelectorAll('#{chart} svg .bar').length")
        assert bars >= 2, chart
    for chart in ("quantiles", "throughput"):
        wait(page, f"document.querySelectorAll('#{chart} svg .line.fused').length")
    policy = page.execute_script("return document.querySelector('[data-key=policy-answers]').textContent")
    assert policy == "fused, and unfused for 25 % of requests"
    cell = "return document.querySelector('[data-key=shadow-compared]').textContent"

    def same_on_both(_: Chrome) -> bool:  # the shadow runs later: its count may still grow
        compared = live.metric("fused_mlp_shadow_batches_total", outcome="compared")
        return compared > 0 and page.execute_script(cell).startswith(f"{compared:,.0f} batches")

    WebDriverWait(page, 20, 0.1).until(same_on_both)


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_fits_the_screen(page: Chrome, size: tuple[int, int]) -> None:
    resize(page, size)
    wait(page, f"window.innerWidth === {size[0]}")
    assert page.execute_script("return document.documentElement.scrollWidth") <= size[0]
    cut = page.execute_script(
        "return [...document.querySelectorAll('.card')].filter(c => c.scrollWidth > c.clientWidth).map(c => c.id)"
    )
    assert cut == []


def test_requests_only_its_own_server_and_logs_no_errors(live: Server, page: Chrome) -> None:
    asked = page.execute_script("return performance.getEntriesByType('resource').map(r => r.name)")
    assert {re.sub(r"\?.*", "", url) for url in asked} <= {
        f"{live.metrics_url}/metrics",
        f"{live.metrics_url}/status.json",
        "data:,",
    }
    assert console_errors(page) == []
    page.execute_script(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.slipped = 1'}))"
    )
    assert (
        page.execute_script("return window.slipped") is None
    )  # blocked by the page's Content-Security-Policy
    assert "Content Security Policy" in console_errors(page)[0]["message"]


def test_says_when_the_server_is_gone(live: Server, page: Chrome) -> None:
    live.stop()
    wait(page, "document.querySelector('#state').textContent === 'no answer from the server'")
