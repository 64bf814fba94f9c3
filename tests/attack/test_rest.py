# SPDX-License-Identifier: Apache-2.0
"""The REST port under attack: floods of headers, requests, chunks and JSON, bodies that never end or unpack to
gigabytes, peers that never read. A good client on the gRPC port of the same loops notices nothing."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator

import numpy as np
import pytest

from fused_mlp import models
from fused_mlp.models.program.spec import Linear, MlpSpec
from tests.attack.attack_run import ROUNDS, SECONDS, SMALL_BUDGETS, AttackRun, Target
from tests.attack.attacker import Attacker
from tests.support.programs import with_weights
from tests.support.rest import json_request, post, rest_port
from tests.support.server import demo_copy

TIMEOUT_S = 1.0
LATE_S = 2.0
HEAD = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\n"
ROW = np.zeros((1, 64), np.float32)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    repository = demo_copy(tmp_path_factory.mktemp("models"))
    (repository / "wide" / "1").mkdir(parents=True)
    wide = MlpSpec(in_features=8, steps=(Linear(name="fc", input="input", out_features=4096),))
    models.save(with_weights(wide), repository / "wide" / "1")
    settings = {"rest_port": 0, "model_repository": repository}
    with Target(settings=settings, receive_timeout_s=TIMEOUT_S, **SMALL_BUDGETS) as running:
        yield running


def connect(run: AttackRun, count: int, *, deaf: bool = False) -> list[Attacker]:
    port = rest_port(run.target.server)
    made = [Attacker(port, hello=False, deaf=deaf) for _ in range(count)]
    run.attackers += made
    return made


def strike_all(attackers: list[Attacker], data: bytes) -> None:
    """Over and over, for the attack's time."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for attacker in attackers:
            attacker.strike(data)


@pytest.mark.parametrize("begin", [HEAD, HEAD + b"Content-Length: 100000\r\n\r\n"], ids=["headers", "body"])
def test_a_request_that_never_ends(target: Target, begin: bytes) -> None:
    with target.attack() as run:
        attackers = connect(run, 100)
        for attacker in attackers:
            attacker.strike(begin)
        deadline = time.monotonic() + TIMEOUT_S + LATE_S
        while time.monotonic() < deadline and run.cut_off < len(attackers):
            for attacker in attackers:
                attacker.strike(b"x")
            time.sleep(0.1)  # the attack's own pace
        assert run.cut_off == len(attackers)
    run.check(most_cpu_s=100 * 30 * 1e-4)


@pytest.mark.parametrize(
    "flood",
    [
        HEAD + b"x: y\r\n" * 20_000,
        HEAD + b"x" * 100_000,
        b"\r\n" * 50_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 20_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x=y;" * 20_000,
    ],
    ids=["fields", "field", "empty lines", "chunks", "extensions"],
)
def test_floods_of_what_is_no_request(target: Target, flood: bytes) -> None:
    with target.attack() as run:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            for attacker in connect(run, 4):
                attacker.strike(flood)
    run.check()


@pytest.mark.parametrize("deaf", [False, True], ids=["read", "never read"])
def test_pipelined_requests(target: Target, deaf: bool) -> None:
    """A peer that does not read its answers has some of them parked, and its further requests wait with it."""
    request = (
        post(json.dumps(json_request(ROW)).encode()) + b"GET /v2/models/digits HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    with target.attack() as run:
        attackers = connect(run, 8, deaf=deaf)
        for _ in range(5 * ROUNDS):
            for attacker in attackers:
                if deaf:
                    attacker.write_some(request * 200)
                else:
                    attacker.strike(request * 50)
    # A call of Python costs 0.3 ms for its 50 bytes.
    run.check(most_cpu_s=run.seconds * 2)


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(json_request(np.zeros((1500, 64), np.float32))).encode(),  # 0.5 MB
        b'{"inputs":' * 90_000,
        b"[" * 900_000,
        b'{"x":' + b"[" * 900_000,
        b'{"x":"' + b"\\u0041" * 150_000 + b'"}',
        b'{"inputs":[{"data":[' + b"1e-310," * 120_000 + b"1]}]}",
        b'{"inputs":[{"data":[' + b"0." + b"1" * 900_000 + b"]}]}",
    ],
    ids=["numbers", "objects", "arrays", "ignored arrays", "escapes", "subnormals", "digits"],
)
def test_large_json(target: Target, body: bytes) -> None:
    with target.attack() as run:
        strike_all(connect(run, 8), post(body))
    run.check()


def test_answers_that_take_long_to_write(target: Target) -> None:
    """A quick kernel and a short request, but 64 thousand numbers of JSON, some 3 ms, for each answer."""
    request = json.dumps(json_request(np.ones((16, 8), np.float32))).encode()
    with target.attack() as run:
        strike_all(connect(run, 4), post(request, path="/v2/models/wide/infer"))
    run.check(most_cpu_s=run.seconds * 2)


def test_bodies_that_unpack_to_much(target: Target) -> None:
    bomb = gzip.compress(b" " * (256 << 20), 9)
    with target.attack() as run:
        strike_all(connect(run, 4), post(bomb, b"Content-Encoding: gzip"))
    run.check(most_cpu_s=run.seconds * 2)
