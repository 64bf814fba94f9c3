# SPDX-License-Identifier: Apache-2.0
"""The pictures of the docs: the live page of a server with traffic, and the report of a profile, light and dark.
`python -m bench.screenshots`; needs `scripts/system-packages browser`, and two minutes of an idle machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from selenium import webdriver

import fused_mlp
from bench.provenance import ROOT
from bench.serving.systems import System, make_repository, service
from tests.support.browser import LAPTOP, open_browser, resize

IMAGES = ROOT / "docs" / "img"
TRAFFIC_S = 75.0  # the page shows the last minute
CLIENTS, PAUSE_S = 4, 0.005
POLICY = {"split": 0.3, "shadow": 0.2}
INPUTS = {"digits": 64, "fraud-score": 30, "ranker": 48}
PROFILE_HEIGHT = 880  # up to the first table


def take(browser: webdriver.Chrome, name: str, height: int | None = None) -> None:
    """Takes a picture of the whole page, or of its top."""
    height = height or browser.execute_script("return document.documentElement.scrollHeight")
    for scheme in ("light", "dark"):
        resize(browser, LAPTOP, dark=scheme == "dark", height=height)
        time.sleep(2)  # the page draws once a second
        path = IMAGES / f"{name}-{scheme}.png"
        path.write_bytes(browser.get_screenshot_as_png())
        print(path.relative_to(ROOT))


def make_models(folder: Path) -> Path:
    """The digits demo, and two with random weights."""
    repository = make_repository(folder)
    shutil.rmtree(repository / "mnist")
    for name, inputs in INPUTS.items():
        if name != "digits":
            net = torch.nn.Sequential(torch.nn.Linear(inputs, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
            fused_mlp.save(fused_mlp.from_torch(net), repository / name / "1")
    return repository


def call(server: System, stop: threading.Event, seed: int) -> None:
    """One to eight rows for each model in turn."""
    random = np.random.default_rng(seed)
    with fused_mlp.Client(f"127.0.0.1:{server.port}") as client:
        while not stop.wait(PAUSE_S):
            for name, inputs in INPUTS.items():
                client.predict(name, random.random((2 ** random.integers(4), inputs), np.float32) * 16)


def take_live_page(browser: webdriver.Chrome, folder: Path) -> None:
    repository = make_models(folder / "models")
    stop = threading.Event()
    resize(browser, LAPTOP)
    with service("live", repository, False, front="native", **POLICY) as server:
        clients = [threading.Thread(target=call, args=(server, stop, seed)) for seed in range(CLIENTS)]
        for each in clients:
            each.start()
        try:
            assert server.metrics_url
            browser.get(f"{server.metrics_url.removesuffix('metrics')}#digits")
            stop.wait(TRAFFIC_S)
            take(browser, "live")
        finally:
            stop.set()
            for each in clients:
                each.join()


def take_profile(browser: webdriver.Chrome, folder: Path) -> None:
    report = folder / "report.html"
    command = "profile --dims 64,128,128,10 --threads 1 --html"
    subprocess.run(
        [sys.executable, "-m", "fused_mlp.service.cli", *command.split(), str(report)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    browser.get(report.as_uri())
    take(browser, "profile", PROFILE_HEIGHT)


def main() -> int:
    browser = open_browser()
    try:
        with tempfile.TemporaryDirectory() as folder:
            take_live_page(browser, Path(folder))
            take_profile(browser, Path(folder))
    finally:
        browser.quit()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
