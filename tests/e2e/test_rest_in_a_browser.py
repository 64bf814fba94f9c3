# SPDX-License-Identifier: Apache-2.0
"""The REST port from a real browser: its own page at /docs, and pages of other origins, which CORS lets in or keeps
out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from selenium.webdriver import Chrome

from fused_mlp.service.fronts.selection import native_front_problem
from tests.support.browser import LAPTOP, PHONE, open_browser, resize
from tests.support.rest import INFER, json_request, rest_port
from tests.support.server import Server

if problem := native_front_problem():
    pytest.skip(problem, allow_module_level=True)

ROW = np.zeros((1, 64), np.float32)
# What a page does, as its own script would write it. Answers {status, body} or {refused}.
ASK = """
const [url, options, done] = arguments;
if (options.bytes) options.body = new Uint8Array(options.bytes);
fetch(url, options)
  .then(async answer => done({status: answer.status, body: await answer.text(),
                              length: answer.headers.get('inference-header-content-length')}))
  .catch(error => done({refused: error.name}));
"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a web server with one empty page; localhost and 127.0.0.1 are two origins of it."""
    folder: Path = tmp_path_factory.mktemp("pages")
    (folder / "page.html").write_text("<!doctype html><title>a page of another origin</title>")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def port(pages: int) -> Iterator[int]:
    with Server(front="native", rest_port=0, cors_origins=f"http://127.0.0.1:{pages}") as server:
        yield rest_port(server)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    opened = open_browser("performance")
    opened.set_script_timeout(20)
    yield opened
    opened.quit()


def ask(browser: Chrome, url: str, **options: object) -> dict[str, Any]:
    answer: dict[str, Any] = browser.execute_async_script(ASK, url, options)
    return answer


def verbs_sent(browser: Chrome) -> list[str]:
    """Since the last look; a preflight is a request of its own."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"]["request"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [request["method"] for request in sent if "/v2" in request["url"]]


def test_a_page_of_a_named_origin(browser: Chrome, pages: int, port: int) -> None:
    browser.get(f"http://127.0.0.1:{pages}/page.html")
    server = f"http://127.0.0.1:{port}"
    assert json.loads(ask(browser, server + "/v2")["body"])["name"] == "fused-mlp"
    verbs_sent(browser)
    answer = ask(
        browser, server + INFER, method="POST", body=json.dumps(json_request(ROW)),
        headers={"content-type": "application/json", "x-request-timeout-ms": "5000"},
    )  # fmt: skip
    assert answer["status"] == 200
    assert len(json.loads(answer["body"])["outputs"][0]["data"]) == 10
    assert sorted(verbs_sent(browser)) == ["OPTIONS", "POST"]
    raw = ask(
        browser, server + INFER, method="POST", bytes=list(ROW.tobytes()),
        headers={"content-type": "application/octet-stream", "inference-header-content-length": "0"},
    )  # fmt: skip
    assert raw["status"] == 200
    assert json.loads(raw["body"][: int(raw["length"])])["outputs"][0]["shape"] == [1, 10]
    wrong = ask(browser, server + INFER, method="POST", body="{}")  # an error can be read, too
    assert (wrong["status"], "inputs: expected tensors by name, got none" in wrong["body"]) == (400, True)


def test_a_page_of_another_origin(browser: Chrome, pages: int, port: int) -> None:
    browser.get(f"http://localhost:{pages}/page.html")
    server, body = f"http://127.0.0.1:{port}", json.dumps(json_request(ROW))
    refused = {"refused": "TypeError"}
    assert ask(browser, server + "/v2") == refused
    assert (
        ask(
            browser,
            server + INFER,
            method="POST",
            body=body,
            headers={"content-type": "application/json"},
        )
        == refused
    )
    assert ask(browser, server + INFER, method="POST", body=body) == refused  # text/plain needs no preflight
    with_header = {"x-fused-mlp-arm": "1/fused"}
    assert ask(browser, server + "/v2", headers=with_header) == refused


def test_a_request_without_preflight_is_not_run_for_another_origin(browser: Chrome, pages: int) -> None:
    """The browser keeps only the answer from the page: the request has been sent."""
    with Server(front="native", rest_port=0) as server:
        browser.get(f"http://127.0.0.1:{pages}/page.html")
        url = f"http://127.0.0.1:{rest_port(server)}{INFER}"
        verbs_sent(browser)
        body = json.dumps(json_request(ROW))
        assert ask(browser, url, method="POST", body=body) == {"refused": "TypeError"}
        assert ask(browser, url, method="POST", body=body, mode="no-cors")["status"] == 0
        assert verbs_sent(browser) == ["POST", "POST"]
        assert server.metric("fused_mlp_requests_total", code="OK") == 0


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_the_page_at_docs(browser: Chrome, port: int, size: tuple[int, int]) -> None:
    resize(browser, size)
    browser.get(f"http://127.0.0.1:{port}/docs")
    shown = browser.execute_script("return document.body.innerText")
    assert "/v2/models/{model}/infer" in shown
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    browser.get(f"http://127.0.0.1:{port}/openapi.json")
    assert json.loads(browser.execute_script("return document.body.innerText"))["openapi"].startswith("3.")
