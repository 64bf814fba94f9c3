# SPDX-License-Identifier: Apache-2.0
"""The live page in a real browser, on a metrics port whose counters the test sets: many models, a server that has run
for long, versions that are loaded again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.support.wait import WebDriverWait

from fused_mlp.service.fronts.ports import bind
from fused_mlp.service.observe.http import MetricsServer, Pages
from fused_mlp.service.policy.policy import Policy
from tests.support.browser import LAPTOP, PHONE, open_browser, resize

DAY_S = 86_400
FAST, SLOW = "0.001", "0.01"  # bounds of the buckets


@dataclass
class Scripted:
    """What the server has counted. Models without a count have no series but their info."""

    models: list[str]
    started: float = field(default_factory=lambda: time.time() - DAY_S)
    answered: dict[tuple[str, str, int], dict[str, int]] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    policy: dict[str, object] = field(default_factory=dict)
    unserved: dict[str, int] = field(default_factory=dict)

    def answer(
        self, model: str, fast: int = 0, slow: int = 0, variant: str = "fused", version: int = 1
    ) -> None:
        lane = model, variant, version
        now = self.answered.get(lane, {FAST: 0, SLOW: 0})
        self.answered[lane] = {FAST: now[FAST] + fast, SLOW: now[SLOW] + slow}

    def metrics(self) -> str:
        lines = [f"process_start_time_seconds {self.started}"]
        for model in self.models:
            info = f'model="{model}",version="1",variant="fused",state="READY",shape="4-2",dtype="float32"'
            lines.append(f"fused_mlp_model_info{{{info}}} 1.0")
        for (model, variant, version), counts in self.answered.items():
            lane = f'model="{model}",version="{version}",variant="{variant}"'
            total = sum(counts.values())
            lines.append(f'fused_mlp_requests_total{{code="OK",{lane}}} {total}')
            name = "fused_mlp_request_duration_seconds"
            for bound, count in ((FAST, counts[FAST]), (SLOW, total), ("+Inf", total)):
                lines.append(f'{name}_bucket{{le="{bound}",{lane}}} {count}')
            lines += [f"{name}_count{{{lane}}} {total}", f"{name}_sum{{{lane}}} {total * 0.001}"]
        for model, count in self.failed.items():
            labels = f'code="INTERNAL",model="{model}",version="1",variant="fused"'
            lines.append(f"fused_mlp_requests_total{{{labels}}} {count}")
        for model, count in self.unserved.items():
            labels = f'code="UNAVAILABLE",model="{model}",version="",variant=""'
            lines.append(f"fused_mlp_requests_total{{{labels}}} {count}")
        return "\n".join([*lines, ""])

    def status(self, model: str | None) -> str:
        policy = Policy().model_dump() | self.policy
        usual = {"state": "READY", "reason": "", "shape": "4-2", "dtype": "float32", "kernels": []}
        versions = [{"version": version, **usual} for version in (1, 2)]
        named = [name for name in self.models if model in (None, name)]
        models = [{"name": n, "default_version": 1, "policy": policy, "versions": versions} for n in named]
        ours = {"version": "1.0", "front": "native", "ready": True, "time": time.time(), "models": models}
        return json.dumps(ours)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    running = open_browser()
    resize(running, LAPTOP)
    yield running
    running.quit()


class Page:
    """The page of a scripted server, open in the browser."""

    def __init__(self, browser: Chrome, scripted: Scripted, fragment: str = "") -> None:
        self._browser = browser
        pages = Pages(
            render=lambda *_: ([scripted.metrics().encode()], "text/plain"),
            not_ready=lambda: "",
            failure=lambda: "",
            status=lambda query: scripted.status(query.one("model")),
        )
        self.server = MetricsServer(bind("127.0.0.1", 0), pages)
        browser.get(f"http://127.0.0.1:{self.server.port}/{fragment}")
        self.wait("document.querySelector('#state').textContent === 'ready'")

    def run(self, script: str) -> object:
        return self._browser.execute_script(f"return {script}")

    def wait(self, script: str) -> object:
        return WebDriverWait(self._browser, 20, 0.05).until(lambda _: self.run(script))

    def wait_text(self, selector: str, text: str) -> None:
        self.wait(f"document.querySelector('{selector}').textContent.includes({json.dumps(text)})")

    def figure(self, key: str, variant: str = "fused") -> float:
        return float(
            self.run(f"document.querySelector('[data-variant={variant}] [data-key=\"{key}\"]').dataset.value")
        )

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector('{selector}').click()")

    def listed(self) -> list[str]:
        return list(
            self.run("[...document.querySelectorAll('#overview tbody tr')].map(r => r.dataset.model)")
        )

    def cell(self, model: str, column: int) -> str:
        return str(
            self.run(
                f"document.querySelector('#overview tr[data-model={model}]').cells[{column}].textContent"
            )
        )

    @property
    def model(self) -> str:
        return str(self.run("document.querySelector('#model-name').textContent"))


@pytest.fixture
def opened(browser: Chrome) -> Iterator[object]:
    pages = []

    def open_page(scripted: Scripted, fragment: str = "") -> Page:
        pages.append(Page(browser, scripted, fragment))
        return pages[-1]

    yield open_page
    browser.get("about:blank")
    for page in pages:
        page.server.stop()


def test_versions_that_have_answered_are_told_by_arm(opened) -> None:
    scripted = Scripted(["ranker"], policy={"version": "1", "arms": {"2/fused": 0.25}})
    page = opened(scripted)
    scripted.answer("ranker", fast=300)
    page.wait("document.querySelector('[data-key=requests]').dataset.value === '300'")
    assert page.run("document.querySelector('#arms-card').hidden") is True
    page.wait_text("#policy", "1/fused, and 2/fused for 25")
    scripted.answer("ranker", slow=100, version=2)
    page.wait("!document.querySelector('#arms-card').hidden")
    page.wait_text("#arms", "1/fused75")
    page.wait_text("#arms", "2/fused25")
    assert page.figure("requests") == 400  # of the variant, whatever the version


def test_every_figure_is_of_the_same_window(opened) -> None:
    scripted = Scripted(["ranker"], failed={"ranker": 7})
    scripted.answer("ranker", fast=1000)
    page = opened(scripted)
    page.wait_text("#latency .empty", '"since start" shows 1,000')
    assert [page.figure(key) for key in ("requests", "failed")] == [0, 0]
    scripted.answer("ranker", slow=30)
    scripted.failed["ranker"] += 2
    page.wait("document.querySelector('[data-key=requests]').dataset.value === '30'")
    assert page.figure("failed") == 2
    assert 1e-3 < page.figure("p50") < 1e-2
    assert "since this page was opened" in str(page.run("document.querySelector('#window-text').textContent"))
    page.click("#windows input[value=Infinity]")
    assert [page.figure(key) for key in ("requests", "failed")] == [1030, 9]
    assert page.figure("p50") < 1e-3
    assert page.figure("req/s") == pytest.approx(1030 / DAY_S, rel=0.01)
    assert (
        page.run("document.querySelector('#window-text').textContent")
        == "All figures: since the server started."
    )


def test_a_young_server_is_shown_from_its_start(opened) -> None:
    scripted = Scripted(["ranker"], started=time.time() - 30)
    scripted.answer("ranker", fast=12)
    page = opened(scripted)
    assert page.figure("requests") == 12
    assert page.figure("req/s") == pytest.approx(12 / 30, rel=0.2)


def test_counts_go_on_when_a_version_is_loaded_again(opened) -> None:
    scripted = Scripted(["ranker"])
    scripted.answer("ranker", fast=100)
    page = opened(scripted)
    scripted.answer("ranker", fast=20)
    page.wait("document.querySelector('[data-key=requests]').dataset.value === '20'")
    scripted.answered.clear()
    page.wait("scrape.lanes.size === 0")
    scripted.answer("ranker", fast=5)
    page.wait("document.querySelector('[data-key=requests]').dataset.value === '25'")
    scripted.answered["ranker", "fused", 1] = {
        FAST: 3,
        SLOW: 0,
    }  # loaded and called again between two scrapes
    page.wait("document.querySelector('[data-key=requests]').dataset.value === '28'")


def test_opens_on_the_model_with_traffic_and_follows_a_link(opened) -> None:
    scripted = Scripted(["a", "b", "c"])
    scripted.answer("b", fast=1000)
    scripted.answer("c", fast=10)
    page = opened(scripted)
    assert page.model == "b"
    assert page.run("document.querySelector('#overview-card').hidden") is False
    scripted.answer("c", fast=10)  # what happens now counts, not what happened last night
    page.wait("document.querySelector('#model-name').textContent === 'c'")
    scripted.answer("b", fast=500)
    page.wait("document.querySelector('#overview tr[data-model=b]')")
    assert page.model == "c"  # the page does not jump any more
    page.click("#overview tr[data-model=b] a")
    page.wait("document.querySelector('#model-name').textContent === 'b'")
    assert str(page.run("location.hash")) == "#b"
    page.run("location.hash = '%'")  # names no model, and is no text either
    scripted.answer("b", fast=7)
    page.wait("document.querySelector('[data-key=requests]').dataset.value === '507'")


def test_requests_that_reached_no_kernel_are_errors_of_their_model(opened) -> None:
    scripted = Scripted(["a", "b"], unserved={"b": 3}, started=time.time() - 100)
    page = opened(scripted, "#b")
    assert page.run("document.querySelector('#overview tr[data-model=b] .bad').textContent") == "3"
    assert str(page.run("document.querySelector('#notice').textContent")).startswith(
        "3 request(s) in the last"
    )
    assert page.run("document.querySelector('#overview-unknown').textContent") == ""
    scripted.unserved[""] = 2
    page.wait_text("#overview-unknown", "2 request(s) in the last")


def test_one_model_needs_no_overview(opened) -> None:
    page = opened(Scripted(["only"]))
    assert page.model == "only"
    assert page.run("document.querySelector('#overview-card').hidden") is True


def test_overview_of_ten_thousand_models(browser: Chrome, opened) -> None:
    scripted = Scripted([f"model-{i}" for i in range(10_000)], started=time.time() - 100)
    for i in range(20):
        scripted.answer(f"model-{i}", fast=100 * (i + 1), slow=i)
    scripted.answer("model-3", fast=1200, variant="unfused")
    scripted.failed["model-5"] = 4
    page = opened(scripted)
    assert page.model == "model-19"
    assert page.listed() == [f"model-{i}" for i in (19, 18, 17, 16, 15, 3, 14, 13, 12, 11)]
    assert page.cell("model-3", 6) == "fused 25\u00a0%"
    count = "#overview-count"
    page.wait_text(count, "1\u201310 of 20 with requests")
    page.click("#overview-next")
    page.wait_text(count, "11\u201320 of 20 with requests")
    assert len(page.listed()) == 10

    for _ in range(2):  # ascending, then descending
        page.click("#overview th[data-key=name] button")
    assert page.listed()[:2] == ["model-19", "model-18"]
    page.click("#overview th[data-key=failed] button")
    assert (page.listed()[0], page.cell("model-5", 4)) == ("model-5", "4")

    page.click("#overview-all")
    page.wait_text(count, "1\u201310 of 10,000 models")
    assert page.cell("model-5", 6) == "fused"
    search = browser.find_element("id", "overview-search")
    search.send_keys("L-777")
    assert page.listed() == ["model-777", *(f"model-{i}" for i in range(7770, 7779))]
    search.send_keys("9")
    assert page.listed() == ["model-7779"]
    assert "1 matching, of 10,000 models" in str(page.run(f"document.querySelector('{count}').textContent"))
    for size in (LAPTOP, PHONE):
        resize(browser, size)
        assert page.run("document.documentElement.scrollWidth") <= size[0]
    resize(browser, LAPTOP)
