# SPDX-License-Identifier: Apache-2.0
"""How busy a replica is, from what its server says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from fused_mlp.service.ray.utilisation import Load, read_load

Answers = Callable[[bytes, bytes], str]


@pytest.fixture
def answers() -> Iterator[Answers]:
    """A server of two connections, each with its bytes for an answer; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threads: list[threading.Thread] = []

        def serve(*texts: bytes) -> None:
            for text in texts:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(text)

        def start(ready: bytes, metrics: bytes) -> str:
            threads.append(threading.Thread(target=serve, args=[each for each in (ready, metrics) if each]))
            threads[0].start()
            return f"http://127.0.0.1:{listening.getsockname()[1]}"

        yield start
        for thread in threads:
            thread.join()


OK = b"HTTP/1.0 200 OK\r\n\r\n"
GAUGES = b"# HELP\nfused_mlp_queue_fill 0.5\nfused_mlp_utilization 0.75\n"


def test_cores_in_use_and_the_queue_are_told_apart(answers: Answers) -> None:
    assert read_load(answers(OK, OK + GAUGES)) == Load(True, busy=0.25, queue_fill=0.5)


@pytest.mark.parametrize(
    ("ready", "metrics"),
    [
        (b"HTTP/1.0 503 Service Unavailable\r\n\r\n", b""),
        (b"no HTTP at all\r\n\r\n", b""),
        (OK, b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\ncut"),
        (OK, OK + b"fused_mlp_utilization none\n"),
        (OK, OK + b"\xff"),
    ],
)
def test_a_server_that_answers_wrongly_is_not_ready(answers: Answers, ready: bytes, metrics: bytes) -> None:
    assert read_load(answers(ready, metrics)) == Load(ready=False)


def test_of_a_fraction_of_a_core_only_the_cores_in_use_are_a_larger_share() -> None:
    load = Load(True, busy=0.25, queue_fill=0.5)
    assert load.utilization(cpus=1) == load.utilization(cpus=3) == 0.75
    assert load.utilization(cpus=0.5) == 1.0
    assert load.utilization(cpus=1.25) == 0.25 * 2 / 1.25 + 0.5
