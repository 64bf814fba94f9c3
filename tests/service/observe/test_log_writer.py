# SPDX-License-Identifier: Apache-2.0
"""A reader of the log that stops reading stops nothing else."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fused_mlp.service.observe import log_writer
from fused_mlp.service.observe.log_writer import LogWriter


@pytest.fixture(params=["blocking", "non-blocking"])
def pipe(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_blocking(write, request.param == "blocking")
    yield read, write
    os.close(read)  # the writer's thread goes on with errors, which it counts
    os.close(write)


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("name", logging.ERROR, "path", 1, text, None, None)


def test_lines_that_find_no_room_are_dropped_counted_and_told(
    pipe: tuple[int, int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "MAX_BYTES", 1 << 18)
    monkeypatch.setattr(log_writer, "MAX_WAIT_S", 0.01)
    writer = LogWriter(pipe[1])
    line = "x" * 1023
    for _ in range(1000):  # a pipe holds 64, the writer 256
        writer.emit(record(line))
    writer.flush()  # returns, although nothing reads
    kept = 1000 - writer.dropped
    assert 256 <= kept <= 256 + 64
    received = 0
    while received < kept * 1024:
        received += len(os.read(pipe[0], 1 << 16))
    monkeypatch.setattr(log_writer, "MAX_WAIT_S", 30)
    writer.flush()
    writer.emit(record("more"))
    writer.flush()
    assert os.read(pipe[0], 1 << 16) == b"more\n"
    told = [
        int(each.getMessage().split()[0]) for each in caplog.records if "were dropped" in each.getMessage()
    ]
    assert sum(told) == writer.dropped


def test_all_lines_are_written_in_order(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    for number in range(1000):
        writer.emit(record(str(number)))
    writer.flush()
    assert os.read(pipe[0], 1 << 16).decode().split() == [str(number) for number in range(1000)]
    assert writer.dropped == 0


def test_lines_for_a_reader_that_is_gone_are_counted() -> None:
    read, write = os.pipe()
    os.close(read)
    writer = LogWriter(write)
    for _ in range(3):
        writer.emit(record("lost"))
    writer.flush()
    os.close(write)
    assert writer.dropped == 3


def test_lines_that_were_lost_are_told_of_once_one_is_written(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    read, write = os.pipe()
    os.close(read)
    writer = LogWriter(write)
    writer.emit(record("lost"))
    writer.flush()
    file = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
    os.dup2(file, write)
    writer.emit(record("kept"))
    writer.flush()
    assert (tmp_path / "log").read_text() == "kept\n"
    writer.emit(record("and more"))
    writer.flush()
    os.close(file)
    os.close(write)
    assert [each.getMessage() for each in caplog.records if "were dropped" in each.getMessage()] == [
        "1 log lines were dropped: stderr was not read fast enough"
    ]
