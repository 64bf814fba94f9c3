# SPDX-License-Identifier: Apache-2.0
"""When files are read again, by a clock of the test's own."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from fused_mlp.service.access import reloading
from fused_mlp.service.access.reloading import Reload, keep_reloading


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Loader:
    def __init__(self) -> None:
        self.loads = 0
        self.problem: Exception | None = None

    def __call__(self) -> None:
        self.loads += 1
        if self.problem:
            raise self.problem


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("one")
    return path


def test_nothing_is_read_while_nothing_changes(file: Path) -> None:
    loader = Loader()
    reload = Reload("tls", [file, None], loader)
    reload.poll()
    assert loader.loads == 0
    reload.reload()
    assert (loader.loads, reload.results) == (1, {"ok": 1, "failed": 0})


def test_a_file_that_is_replaced_written_or_gone_has_changed(file: Path) -> None:
    loader = Loader()
    reload = Reload("tls", [file], loader)
    file.write_text("longer")
    reload.poll()
    replacement = file.with_name("next")
    replacement.write_text("longer")
    os.utime(replacement, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    replacement.replace(file)
    reload.poll()
    file.unlink()
    reload.poll()
    reload.poll()
    assert loader.loads == 3


def test_a_failure_is_logged_once_and_tried_again_when_the_files_change(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loader = Loader()
    reload = Reload("tls", [file], loader)
    loader.problem = ValueError("no certificate")
    file.write_text("broken")
    reload.poll()
    reload.poll()
    assert reload.results == {"ok": 0, "failed": 1}
    line, recorded = caplog.messages
    assert recorded.startswith("audit: who=server action=read_files arguments=tls result=FAILED_PRECONDITION")
    assert line == "tls: cannot use the new files, the old ones stay in use: no certificate"
    loader.problem = None
    file.write_text("mended")
    reload.poll()
    assert reload.results == {"ok": 1, "failed": 1}


def test_ticket_keys_are_renewed_when_it_is_time(file: Path) -> None:
    clock, loader = Clock(), Loader()
    reload = Reload("tls", [file], loader, at_least_every_s=100, clock=clock)
    for now, loads in ((99, 0), (100, 1), (199, 1), (200, 2)):
        clock.now = now
        reload.poll()
        assert loader.loads == loads


def test_a_pipe_is_not_read_a_second_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "key")
    loader = Loader()
    Reload("tls", [tmp_path / "key"], loader).reload()
    assert loader.loads == 0
    assert "not a regular file" in caplog.text


def test_files_that_do_not_answer_are_told_of(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reloading, "MAX_SILENCE_S", 0.01)
    answers = threading.Event()
    item = Reload("policy", [file], lambda: answers.wait() and None)

    async def run() -> None:
        asked = asyncio.Event()
        asked.set()
        task = asyncio.create_task(keep_reloading([item], asked))
        while "policy: its files have not answered for 0.01 s" not in caplog.text:
            await asyncio.sleep(0.01)
        answers.set()
        while item.results["ok"] == 0:
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(asyncio.wait_for(run(), 30))
