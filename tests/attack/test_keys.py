# SPDX-License-Identifier: Apache-2.0
"""Attacks on keys: guesses, floods of distinct ones, and keys that are used on after they were revoked or have expired.
A caller with a good key notices nothing."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import numpy as np
import pytest

from fused_mlp.protos import admin_pb2, health_pb2
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.access.reloading import POLL_S
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.client.admin import AdminClient
from tests.attack.attacker import ATTACKER_HOST
from tests.e2e.test_tls_reload import admin_target, reloads, wait_until
from tests.support.keys import Keys
from tests.support.rest import INFER, RestClient, rest_port
from tests.support.server import Server, free_port

X = np.zeros((1, 64), np.float32)
BURST = 50  # wrong keys of an address, before it must wait
IN_TIME_S = POLL_S + 2  # the server looks at the file every POLL_S; the rest is for a busy machine


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys.json", good={}, other={})


def resident_bytes(server: Server) -> int:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096


class Guesser:
    """Sends keys over REST, from an address of its own."""

    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", rest_port(server), timeout=30, source_address=(ATTACKER_HOST, 0)
        )

    def send(self, *keys: str) -> Counter[int]:
        """How often each status came. A request that is let in ends as 400: it has no rows."""
        codes: Counter[int] = Counter()
        for key in keys:
            self._connection.request("POST", INFER, b"{}", {"x-api-key": key})
            response = self._connection.getresponse()
            response.read()
            codes[response.status] += 1
        return codes

    def close(self) -> None:
        self._connection.close()


@contextmanager
def good_caller(server: Server, key: str) -> Iterator[None]:
    """Predicts all the while; none of its calls fails."""
    failures: list[PredictError] = []
    done, answered = threading.Event(), threading.Event()

    def call() -> None:
        with Client(server.target, api_key=key) as client:
            while not done.is_set():
                try:
                    client.predict("digits", X)
                except PredictError as error:
                    failures.append(error)
                answered.set()

    thread = threading.Thread(target=call)
    thread.start()
    try:
        assert answered.wait(30)
        yield
    finally:
        done.set()
        thread.join()
    assert not failures


def test_an_address_that_guesses_must_wait_and_others_need_not(keys: Keys) -> None:
    with Server(keys=keys.path, rest_port=0) as server, good_caller(server, keys["good"]):
        guesser = Guesser(server)
        codes = guesser.send(*(f"guess-{i}" for i in range(10 * BURST)))
        assert codes[401] <= BURST + 20  # one more for each second that it takes
        assert codes[429] >= 9 * BURST - 20
        guesser.close()


def test_guesses_lock_no_caller_of_that_address_out(keys: Keys) -> None:
    """On no port, on new connections, with a key that did not come before."""
    keys.add("all", actions=["predict", "describe", "admin", "metrics"])
    keys.write()
    settings = {"rest_port": 0, "admin_port": free_port(), "callers": json.dumps({"metrics": str(keys.path)})}
    with Server(keys=keys.path, **settings) as server:
        guesser, rest = RestClient(rest_port(server)), RestClient(rest_port(server))

        def look(key: str) -> int:
            return guesser.ask("GET", "/v2/models/digits", x_api_key=key).status

        def predict(key: str) -> int:
            return rest.ask("POST", INFER, b"{}", x_api_key=key).status

        def describe(key: str) -> int:
            with grpc.insecure_channel(server.target) as channel:
                stub = Stub(channel, oip, "GRPCInferenceService")
                request = oip.ModelMetadataRequest(name="digits")
                call = stub.ModelMetadata.with_call(request, metadata=[("x-api-key", key)], timeout=20)[1]
                return int(call.code().value[0])

        def administer(key: str) -> int:
            with AdminClient(admin_target(server), metadata={"x-api-key": key}) as admin:
                return len(admin.policies("digits"))

        def scrape(key: str) -> int:
            return server.get("/metrics", {"x-api-key": key})[0]

        for ask, answer in ((look, 200), (predict, 400), (describe, 0), (administer, 1), (scrape, 200)):
            assert 429 in {look("guess") for _ in range(2 * BURST)}
            assert ask(keys["all"]) == answer, ask
            assert look("guess") == 429
        guesser.close()
        rest.close()


def test_callers_that_were_known_before_the_guesses_go_on(keys: Keys) -> None:
    """All of one address, with a new file of keys in between."""
    with Server(keys=keys.path, rest_port=0, loops=1) as server:
        guesser = Guesser(server)
        assert guesser.send(keys["good"]) == {400: 1}
        guesser.send(*(f"guess-{i}" for i in range(10 * BURST)))
        keys.add("third")
        keys.write()
        before = time.monotonic()
        while server.metric("fused_mlp_reloads_total", files="keys", result="ok") == 0:
            assert time.monotonic() < before + 30
        assert guesser.send(keys["good"]) == {400: 1}
        guesser.close()


def test_a_flood_of_distinct_keys_takes_no_memory(keys: Keys) -> None:
    with Server(keys=keys.path, rest_port=0) as server, good_caller(server, keys["good"]):
        guesser = Guesser(server)
        guesser.send(*(f"warm-up-{i:0200d}" for i in range(1000)))
        before = resident_bytes(server)
        for turn in range(10):
            guesser.send(*(f"guess-{turn}-{i:0200d}" for i in range(1000)))
        assert resident_bytes(server) < before + (4 << 20)
        guesser.close()
        for name in ("guess-", "warm-up-"):
            assert name not in server.get("/metrics")[1] + server.log()


def refused_after(client: Client, since: float) -> float:
    """Calls until a call is refused; when that was."""
    while True:
        try:
            client.predict("digits", X)
        except PredictError as error:
            assert error.code is grpc.StatusCode.UNAUTHENTICATED
            return time.time() - since
        assert time.time() < since + 60


def test_a_revoked_key_is_refused_under_load_within_the_reload_period(keys: Keys) -> None:
    with (
        Server(keys=keys.path) as server,
        good_caller(server, keys["good"]),
        Client(server.target, api_key=keys["other"]) as client,
    ):
        stream = client.stream("digits", itertools.repeat(X), timeout_s=60)
        next(stream).unwrap()
        revoked_at = time.time()
        keys.remove("other")
        keys.write()
        assert refused_after(client, revoked_at) < IN_TIME_S
        # An open stream is no way around it: requests that were sent before are answered, later ones refused.
        failed = next(item.result for item in stream if isinstance(item.result, PredictError))
        assert failed.code is grpc.StatusCode.UNAUTHENTICATED


class OpenStreams:
    """A watch of a model and a trace, which send nothing for a long time."""

    def __init__(self, server: Server, key: str) -> None:
        sent = {"metadata": [("x-api-key", key)], "timeout": 60}
        self._channels = [grpc.insecure_channel(target) for target in (server.target, admin_target(server))]
        self._watch = Stub(self._channels[0], health_pb2, "Health").Watch(
            health_pb2.HealthCheckRequest(service="digits"), **sent
        )
        self._trace = Stub(self._channels[1], admin_pb2, "Admin").Trace(
            admin_pb2.TraceRequest(seconds=40), **sent
        )
        next(self._watch)

    def refused_after(self, since: float) -> float:
        """Waits until both are refused; when the last one was."""
        for stream in (self._watch, self._trace):
            with pytest.raises(grpc.RpcError) as refused:
                next(stream)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        for channel in self._channels:
            channel.close()
        return time.time() - since


@pytest.mark.parametrize("front", ["native", "python"])
def test_open_streams_of_a_revoked_key_end_within_the_reload_period(keys: Keys, front: str) -> None:
    for name in ("second", "third"):
        keys.add(name, actions=["describe", "admin"])
    keys.write()
    with Server(keys=keys.path, admin_port=free_port(), front=front) as server:
        streams = OpenStreams(server, keys["second"])
        health = Stub(grpc.insecure_channel(server.target), health_pb2, "Health")
        request, sent = health_pb2.HealthCheckRequest(service="digits"), [("x-api-key", keys["third"])]
        kept = health.Watch(request, metadata=sent, timeout=60)
        next(kept)
        revoked_at = time.time()
        keys.remove("second")
        keys.write()
        assert streams.refused_after(revoked_at) < IN_TIME_S
        assert kept.is_active()


def test_open_streams_of_a_key_that_expires_end(keys: Keys) -> None:
    with Server(keys=keys.path, admin_port=free_port()) as server:
        ends = datetime.now(UTC) + timedelta(seconds=12)
        keys.add("short", actions=["describe", "admin"], expires=ends.isoformat())
        keys.write()
        wait_until(lambda: reloads(server, "ok", "keys") == 1)
        assert -1.1 < OpenStreams(server, keys["short"]).refused_after(ends.timestamp()) < 3


def test_a_key_expires_under_load_without_a_new_file(keys: Keys) -> None:
    with Server(keys=keys.path) as server, good_caller(server, keys["good"]):
        ends = datetime.now(UTC) + timedelta(seconds=12)
        keys.add("short", expires=ends.isoformat())
        keys.write()
        wait_until(lambda: reloads(server, "ok", "keys") == 1)
        client = Client(server.target, api_key=keys["short"])
        client.predict("digits", X)
        assert -1.1 < refused_after(client, ends.timestamp()) < 2  # ends at a whole second
        client.close()
