# SPDX-License-Identifier: Apache-2.0
"""Every hard limit of the native front, from the outside: the peer that breaks it is stopped, others go on."""

from __future__ import annotations

import gzip
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    ExtensionFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from fused_mlp.service.fronts.ports import bind, port_of
from fused_mlp.service.fronts.selection import native_front_problem
from tests.support.peer import MAX_WINDOW, PREDICT_STREAM, Peer, framed, good_request
from tests.support.toy_front import ToyFront

if problem := native_front_problem():
    pytest.skip(problem, allow_module_level=True)

SETTINGS_TIMEOUT, ENHANCE_YOUR_CALM = 4, 11
OK, INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED = 0, 3, 4, 8
CANCEL = 8
REFUSED_STREAM = 7
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"


@pytest.fixture(scope="module")
def strict() -> Iterator[ToyFront]:
    """Small limits on what one peer may hold and do."""
    with ToyFront(
        max_message_bytes=4096,
        max_header_bytes=2048,
        max_concurrent_streams=8,
        max_output_bytes=16 << 10,
        max_buffered_bytes=512 << 10,
        max_resets_per_s=20,
        max_pings_per_s=20,
        max_settings_per_s=10,
        max_control_frames_per_s=50,
    ) as front:
        yield front


@pytest.fixture(scope="module")
def impatient() -> Iterator[ToyFront]:
    """Short limits on how long things may take."""
    with ToyFront(handshake_timeout_s=0.3, receive_timeout_s=0.3, send_timeout_s=0.5) as front:
        yield front


@pytest.fixture(autouse=True)
def _good_client_never_notices(request: pytest.FixtureRequest) -> Iterator[None]:
    """A well-behaved connection that was there before answers after each test as it did at its start."""
    name = next((name for name in ("strict", "impatient") if name in request.fixturenames), None)
    if name is None:
        yield
        return
    with Peer(request.getfixturevalue(name).port) as good:
        assert good.call(1, good_request()).status == OK
        yield
        assert good.call(3, good_request()).status == OK


def test_message_size(strict: ToyFront) -> None:
    with Peer(strict.port) as peer:
        answer = peer.call(1, bytes(4097))
        assert (answer.status, answer.text) == (RESOURCE_EXHAUSTED, "message: expected at most 4096 bytes")
        assert peer.call(3, good_request()).status == OK


def test_message_size_holds_for_what_gzip_unpacks_to(strict: ToyFront) -> None:
    with Peer(strict.port) as peer:
        peer.begin(1, extra=[("grpc-encoding", "gzip")])
        peer.send(peer.data(1, framed(gzip.compress(bytes(1 << 20)), compressed=True), end=True))
        assert peer.wait_end(1).status == RESOURCE_EXHAUSTED


def test_header_size(strict: ToyFront) -> None:
    with Peer(strict.port) as peer:
        answer = peer.call(1, good_request(), extra=[("x-large", "x" * 3000)])
        assert (answer.status, answer.text) == (RESOURCE_EXHAUSTED, "headers: expected at most 2048 bytes")
        assert peer.settings[SettingsFrame.MAX_HEADER_LIST_SIZE] == 2048


def test_headers_without_end_are_cut_off(strict: ToyFront) -> None:
    with Peer(strict.port) as peer:
        frame = peer.headers(1)
        frame.flags.discard("END_HEADERS")
        peer.send(frame)
        for _ in range(200):
            try:
                peer.send(ContinuationFrame(1, b"\x00\x01a" + b"\x7f\x81\x01" + b"x" * 256))
            except ConnectionError:
                break
        peer.wait_closed()


def test_concurrent_streams(strict: ToyFront) -> None:
    with Peer(strict.port) as peer:
        peer.ping()
        assert peer.settings[SettingsFrame.MAX_CONCURRENT_STREAMS] == 8
        for index in range(9):
            peer.begin(1 + 2 * index, PREDICT_STREAM)
        assert peer.wait_closed() == 1  # PROTOCOL_ERROR: it had been told (RFC 9113, 5.1.2)


def test_concurrent_streams_of_a_peer_that_has_not_heard_of_the_limit_yet(strict: ToyFront) -> None:
    with Peer(strict.port) as peer:
        peer.send(*(peer.headers(1 + 2 * index, PREDICT_STREAM) for index in range(9)))
        assert peer.wait_end(17).reset == 7  # REFUSED_STREAM: safe to try again
        peer.send(peer.data(1, b"", end=True))
        assert peer.wait_end(1).status == OK


def test_connections_that_all_have_calls_keep_others_out() -> None:
    limits = {"max_connections": 2, "max_connections_per_peer": 2}
    with ToyFront(**limits) as front, Peer(front.port) as first, Peer(front.port) as second:
        for peer in (first, second):
            peer.begin(1, PREDICT_STREAM)
            peer.ping()
        with Peer(front.port, hello=False) as third:
            assert third.wait_closed() is None
        assert first.call(3, good_request()).status == OK


def test_idlest_connection_makes_room() -> None:
    limits = {"max_connections": 3, "max_connections_per_peer": 3}
    with (
        ToyFront(**limits) as front,
        Peer(front.port) as busy,
        Peer(front.port) as old,
        Peer(front.port) as new,
    ):
        busy.begin(1, PREDICT_STREAM)
        for peer in (busy, old, new):
            peer.ping()
        assert new.call(1, good_request()).status == OK
        with Peer(front.port) as newcomer:
            assert old.wait_closed() == 0
            assert b"another connection needed its place" in reason(old)
            assert newcomer.call(1, good_request()).status == OK
            assert new.call(3, good_request()).status == OK
            assert busy.call(3, good_request()).status == OK


def test_peer_with_many_connections_makes_room_for_others() -> None:
    with ToyFront(max_connections=4) as front, ExitStack() as stack:
        other = stack.enter_context(Peer(front.port, host="127.0.0.2"))
        other.ping()
        crowd = []
        for _ in range(2):
            crowd.append(stack.enter_context(Peer(front.port)))
            crowd[-1].ping()  # each loop has a clock: the first must be there before the second connects
        third = stack.enter_context(Peer(front.port))  # beyond its share, a half
        assert crowd[0].wait_closed() == 0
        third.ping()
        fourth = stack.enter_context(Peer(front.port, host="127.0.0.3"))
        fifth = stack.enter_context(Peer(front.port, host="127.0.0.4"))
        assert crowd[1].wait_closed() == 0  # full: the idlest of the peer that has most
        for peer in (other, third, fourth, fifth):
            assert peer.call(1, good_request()).status == OK


def test_header_block_that_does_not_end_times_out(impatient: ToyFront) -> None:
    with Peer(impatient.port) as peer:
        peer.ping()  # its SETTINGS are acknowledged: no frame may come inside a header block
        frame = peer.headers(1)
        frame.flags.discard("END_HEADERS")
        peer.send(frame)
        assert peer.wait_closed() == ENHANCE_YOUR_CALM
        assert b"headers not finished within receive_timeout_s" in reason(peer)


def test_headers_far_beyond_the_limit_are_reset(strict: ToyFront) -> None:
    """One byte refers to a field of a kilobyte: nghttp2 must not go on checking it."""
    with Peer(strict.port) as peer:
        peer.begin(1, PREDICT_STREAM, extra=[("x-large", "v" * 1000)])
        frame = peer.headers(3)
        frame.data += b"\xbe" * 4000
        peer.send(frame)
        assert peer.wait_end(3).reset is not None
        peer.send(peer.data(1, b"", end=True))
        assert peer.wait_end(1).status == OK


def test_rapid_reset(strict: ToyFront) -> None:
    with Peer(strict.port) as peer:
        streams = range(1, 100, 2)
        pairs = ((peer.headers(stream, PREDICT_STREAM), RstStreamFrame(stream, 8)) for stream in streams)
        # All at once: what the server has not read when it closes would turn its goodbye into a reset.
        peer.send(*(frame for pair in pairs for frame in pair))
        assert peer.wait_closed() == ENHANCE_YOUR_CALM
        assert b"max_resets_per_s" in reason(peer)


def test_rapid_reset_of_whole_requests(strict: ToyFront) -> None:
    with Peer(strict.port) as peer:
        data = framed(good_request())
        for stream in range(1, 1000, 2):
            peer.send(peer.headers(stream), peer.data(stream, data, end=True), RstStreamFrame(stream, CANCEL))
        assert peer.wait_closed() == ENHANCE_YOUR_CALM


def test_resets_of_valid_requests_that_have_a_deadline_are_not_counted(strict: ToyFront) -> None:
    """To us their deadline has not passed: they were on their way for longer than they have been here."""
    with Peer(strict.port) as peer:
        frames: list[Frame] = []
        for stream in range(1, 200, 2):
            frames.append(peer.headers(stream, extra=[("grpc-timeout", "50m")]))
            frames += [peer.data(stream, framed(good_request()), end=True), RstStreamFrame(stream, CANCEL)]
        peer.send(*frames)
        assert peer.call(201, good_request()).status == OK
        assert not peer.goaways


def test_resets_of_less_than_half_of_the_calls_are_not_counted(strict: ToyFront) -> None:
    with Peer(strict.port) as peer:
        for stream in range(1, 601, 6):
            peer.send(peer.headers(stream, PREDICT_STREAM), RstStreamFrame(stream, CANCEL))
            assert peer.call(stream + 2, good_request()).status == OK
            assert peer.call(stream + 4, good_request()).status == OK
        peer.ping()
        assert not peer.goaways


def test_resets_that_the_peer_makes_us_do(strict: ToyFront) -> None:
    """Each window that overflows is a stream error that we must answer with RST_STREAM."""
    with Peer(strict.port) as peer:
        for stream in range(1, 100, 2):
            peer.send(peer.headers(stream, PREDICT_STREAM), WindowUpdateFrame(stream, MAX_WINDOW))
            peer.wait(lambda stream=stream: stream in peer.answers or peer.goaways)
        assert peer.wait_closed() == ENHANCE_YOUR_CALM
        assert b"max_resets_per_s" in reason(peer)


# By kind of frame: what GOAWAY says to a flood of it.
FLOODS = {
    "ping": (PingFrame(0, b"flooding"), b"too_many_pings"),  # the words that gRPC clients understand
    "settings": (SettingsFrame(0), b"max_settings_per_s"),
    "priority": (PriorityFrame(1, depends_on=0), b"max_control_frames_per_s"),
    "empty data": (DataFrame(1, b""), b"max_control_frames_per_s"),
    "window update": (WindowUpdateFrame(0, 4096), b"max_control_frames_per_s"),
    "unknown type": (ExtensionFrame(0xBE, 1), b"max_control_frames_per_s"),
    "answered ping": (PingFrame(0, b"unasked!", flags=["ACK"]), b"max_control_frames_per_s"),
}


def reason(peer: Peer) -> bytes:
    return peer.goaways[-1].additional_data


@pytest.mark.parametrize("kind", FLOODS)
def test_floods_of_frames_that_cost_the_peer_nothing(strict: ToyFront, kind: str) -> None:
    """GOAWAY arrives whatever the peer still sends: the server reads on until the peer has closed too."""
    frame, words = FLOODS[kind]
    with Peer(strict.port) as peer:
        peer.begin(1, PREDICT_STREAM)
        for _ in range(200):
            peer.send(frame)
        assert peer.wait_closed() == ENHANCE_YOUR_CALM
        assert words in reason(peer)


def test_pings_between_answers_are_no_flood(strict: ToyFront) -> None:
    """grpc-go and grpc-java measure their bandwidth with a ping for each DATA frame."""
    with Peer(strict.port) as peer:
        for stream in range(1, 401, 2):
            peer.send(PingFrame(0, b"measures"))
            assert peer.call(stream, good_request()).status == OK
        assert not peer.goaways


def test_pings_for_many_answers_may_come_at_once(strict: ToyFront) -> None:
    with Peer(strict.port) as peer:
        for stream in range(1, 401, 2):
            assert peer.call(stream, good_request()).status == OK
        peer.send(*[PingFrame(0, b"measures")] * 400)
        peer.wait(lambda: peer.pings_answered == 400)
        assert not peer.goaways


def test_small_frames_of_one_answer_earn_no_pings(strict: ToyFront) -> None:
    """A peer must not make its pings free by taking an answer byte by byte."""
    with Peer(strict.port) as peer:
        shut_windows_behind(peer, 1, answer_bytes=2000)
        for _ in range(100):
            peer.send(WindowUpdateFrame(1, 1), PingFrame(0, b"flooding"))
        assert peer.wait_closed() == ENHANCE_YOUR_CALM


def test_pings_within_the_limit_are_answered(strict: ToyFront) -> None:
    with Peer(strict.port) as peer:
        for _ in range(10):
            peer.ping()


def test_client_that_never_reads_is_bounded_and_then_cut_off(impatient: ToyFront) -> None:
    """Its socket is full: reading from it stops, memory stays flat, and after send_timeout_s it is closed."""
    before = impatient.memory_bytes()
    request = framed(good_request(request_id="x" * 10_000))
    with Peer(impatient.port, receive_buffer=4096) as peer:
        peer.send(WindowUpdateFrame(0, MAX_WINDOW - 65535))
        with pytest.raises(ConnectionError):
            for stream in range(1, 1_000_000, 2):
                peer.send(peer.headers(stream), peer.data(stream, request, end=True))
    assert impatient.memory_bytes() - before < 64 << 20


def test_client_that_opens_no_window_is_reset(impatient: ToyFront) -> None:
    """Its socket is fine but its stream takes nothing: the stream is given up after send_timeout_s."""
    with Peer(impatient.port) as peer:
        peer.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}))
        answer = peer.call(1, good_request())
        assert answer.reset == 8  # CANCEL
        peer.ping()


def shut_windows_behind(peer: Peer, calls: int, answer_bytes: int = 10_000) -> None:
    """Calls of 10 KB answers each, until all have begun; their bytes wait for a window that the peer opens or not."""
    peer.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}))
    streams = range(1, 2 * calls, 2)
    request = framed(good_request(request_id="x" * answer_bytes))
    for stream in streams:
        peer.send(peer.headers(stream), peer.data(stream, request, end=True))
    peer.wait(lambda: all(stream in peer.answers for stream in streams))


def test_answers_behind_shut_windows_are_bounded_and_go_on_when_they_open() -> None:
    """Past max_output_bytes further requests wait, unary and streamed; nothing is lost once the peer reads."""
    with (
        ToyFront(max_output_bytes=64 << 10, send_timeout_s=0) as front,
        Peer(front.port) as peer,
        Peer(front.port) as good,
    ):
        shut_windows_behind(peer, 7)  # the last takes it past the limit
        unary, streamed = range(101, 201, 2), 301
        for stream in unary:
            peer.send(peer.headers(stream), peer.data(stream, framed(good_request()), end=True))
        peer.begin(streamed, PREDICT_STREAM)
        peer.send(peer.data(streamed, framed(good_request()) * 3, end=True))
        peer.ping()
        assert good.call(1, good_request()).status == OK  # in line behind them, had they been let through
        peer.ping()
        assert not [stream for stream in (*unary, streamed) if stream in peer.answers]

        peer.send(
            WindowUpdateFrame(0, MAX_WINDOW - 65535),
            SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 1 << 20}),
        )
        for stream in (*range(1, 14, 2), *unary, streamed):
            assert peer.wait_end(stream).status == OK
        assert len(peer.answers[streamed].messages()) == 3


def test_requests_behind_answers_that_nobody_reads_are_told_so() -> None:
    with ToyFront(max_output_bytes=16 << 10, send_timeout_s=0.5) as front, Peer(front.port) as peer:
        shut_windows_behind(peer, 2)
        answer = peer.call(101, good_request())
        assert (answer.status, "not read in time" in answer.text) == (RESOURCE_EXHAUSTED, True)
        assert peer.wait_end(1).reset == peer.wait_end(3).reset == CANCEL


def test_request_that_waits_behind_shut_windows_keeps_its_deadline() -> None:
    with ToyFront(max_output_bytes=16 << 10, send_timeout_s=0) as front, Peer(front.port) as peer:
        shut_windows_behind(peer, 2)
        assert peer.call(101, good_request(), extra=[("grpc-timeout", "50m")]).status == DEADLINE_EXCEEDED


def test_answer_taken_byte_by_byte_is_not_kept_forever(impatient: ToyFront) -> None:
    """A byte of window now and then is no progress: the clock of send_timeout_s does not start again."""
    with Peer(impatient.port) as peer:
        shut_windows_behind(peer, 1)
        started = time.monotonic()
        while peer.answers[1].reset is None and time.monotonic() - started < 20:
            peer.send(WindowUpdateFrame(1, 1))
            peer.ping()
            time.sleep(0.05)  # the slowness under test, not a wait
        assert peer.answers[1].reset == CANCEL


def test_answer_taken_slowly_but_steadily_arrives() -> None:
    """16 KiB every 0.2 s take longer than send_timeout_s in sum, and are progress each time."""
    with ToyFront(send_timeout_s=1) as front, Peer(front.port) as peer:
        peer.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}), WindowUpdateFrame(0, 1 << 20))
        peer.ping()  # with it come the SETTINGS that let 100 KB in
        peer.on_data = lambda frame: None  # type: ignore[method-assign]
        request = framed(good_request(request_id="x" * 100_000))
        peer.begin(1)
        for offset in range(0, len(request), 16 << 10):
            peer.send(peer.data(1, request[offset : offset + (16 << 10)]))
        peer.send(peer.data(1, b"", end=True))
        for _ in range(7):
            time.sleep(0.2)  # the slowness under test, not a wait
            peer.send(WindowUpdateFrame(1, 16 << 10))
        assert peer.wait_end(1).status == OK


def test_flood_of_tiny_window_updates_for_an_answer_that_waits(strict: ToyFront) -> None:
    with Peer(strict.port) as peer:
        peer.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}))
        peer.send(peer.headers(1), peer.data(1, framed(good_request(request_id="x" * 2000)), end=True))
        peer.wait(lambda: 1 in peer.answers)
        for _ in range(200):
            peer.send(WindowUpdateFrame(1, 1))
        assert peer.wait_closed() == ENHANCE_YOUR_CALM


def test_small_window_updates_that_clients_send_with_every_call_are_not_counted(strict: ToyFront) -> None:
    """grpcio: one of 5 bytes for the stream before its answer, one for the connection after it."""
    with Peer(strict.port) as peer:
        for stream in range(1, 401, 2):
            peer.send(peer.headers(stream), WindowUpdateFrame(stream, 5))
            peer.send(peer.data(stream, framed(good_request()), end=True))
            assert peer.wait_end(stream).status == OK


def test_one_byte_at_a_time_is_not_forever(impatient: ToyFront) -> None:
    with Peer(impatient.port) as peer:
        peer.begin(1)
        started = time.monotonic()
        for byte in framed(good_request()):
            peer.send(peer.data(1, bytes([byte])))
            peer.ping()
            if peer.answers.get(1) and peer.answers[1].ended:
                break
            time.sleep(0.02)  # the slowness under test, not a wait
        answer = peer.wait_end(1)
        assert answer.status == DEADLINE_EXCEEDED
        assert time.monotonic() - started < 20


def test_streaming_call_may_idle_between_messages_but_not_inside_one(impatient: ToyFront) -> None:
    with Peer(impatient.port) as peer:
        peer.begin(1, PREDICT_STREAM)
        peer.begin(3, PREDICT_STREAM)
        peer.send(peer.data(3, framed(good_request())[:7]))
        assert peer.wait_end(3).status == DEADLINE_EXCEEDED
        peer.send(peer.data(1, framed(good_request()), end=True))
        assert peer.wait_end(1).status == OK


def test_connection_that_says_nothing_is_closed(impatient: ToyFront) -> None:
    with Peer(impatient.port, hello=False) as silent:
        silent.write = lambda data: None  # type: ignore[method-assign]
        assert silent.wait_closed() == SETTINGS_TIMEOUT
        assert b"handshake_timeout_s" in reason(silent)
        assert silent.closed


def test_connection_that_speaks_http1_is_closed(impatient: ToyFront) -> None:
    with Peer(impatient.port, hello=False) as peer:
        peer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        peer.wait_closed()
        assert not peer.answers


def test_unfinished_messages_of_all_peers_are_bounded() -> None:
    with ToyFront(max_message_bytes=1 << 20, max_buffered_bytes=1 << 20) as front, Peer(front.port) as peer:
        peer.ping()  # with it come the SETTINGS that open the window
        half = framed(bytes(1 << 20))[: 300 << 10]
        for stream in range(1, 21, 2):  # 3 MB; a lone address has 2.5 times the largest message and 256 KiB
            peer.begin(stream)
            for offset in range(0, len(half), 16 << 10):
                peer.send(peer.data(stream, half[offset : offset + (16 << 10)]))
        peer.ping()
        refused = [answer for answer in peer.answers.values() if answer.ended]
        assert refused
        assert all(a.status == RESOURCE_EXHAUSTED and "unfinished" in a.text for a in refused)
        assert peer.call(21, good_request()).status == OK


def test_the_largest_message_fits_whatever_the_number_of_loops() -> None:
    """The account is one for all of them. Each connection is on another loop, and leaves its loop some of it."""
    from fused_mlp.service import _front

    limits = _front.Limits()
    limits.max_message_bytes = 1 << 20
    limits.max_buffered_bytes = 1 << 20
    listener = bind("127.0.0.1", 0)
    port = port_of(listener)
    server = _front.FrontServer(listener=listener.detach(), loops=32, limits=limits)
    server.start()
    server.listen()
    try:
        for number in range(64):
            with Peer(port) as peer:
                packed = bool(number % 2)  # without getting smaller: as large as it may be, twice
                message = gzip.compress(bytes((1 << 20) - 1024), 0) if packed else bytes(1 << 20)
                body = framed(message, compressed=packed)
                peer.ping()  # with it come the SETTINGS that open the window
                peer.begin(1, extra=[("grpc-encoding", "gzip")] if packed else [])
                for offset in range(0, len(body), 16 << 10):
                    peer.send(peer.data(1, body[offset : offset + (16 << 10)]))
                peer.send(peer.data(1, b"", end=True))
                assert peer.wait_end(1).status == OK
    finally:
        server.stop()


def test_control_calls_of_one_connection_are_bounded() -> None:
    with ToyFront(max_control_calls=4) as front, Peer(front.port) as peer, Peer(front.port) as good:
        for stream in range(1, 11, 2):
            peer.send(peer.headers(stream, HEALTH_WATCH), peer.data(stream, framed(b""), end=True))
        assert peer.wait_end(9).status == RESOURCE_EXHAUSTED
        assert good.call(1, b"", HEALTH_CHECK).status == OK
        peer.send(RstStreamFrame(1, CANCEL))
        assert peer.call(11, b"", HEALTH_CHECK).status == OK


def test_control_calls_of_a_few_connections_leave_room_for_others() -> None:
    """Each may have as much of max_control_bytes as is left for all others."""
    with ToyFront(max_control_bytes=1 << 20) as front, ExitStack() as peers, Peer(front.port) as good:
        greedy = [peers.enter_context(Peer(front.port)) for _ in range(4)]
        for peer in greedy:
            for stream in range(1, 401, 2):
                peer.send(peer.headers(stream, HEALTH_WATCH), peer.data(stream, framed(b""), end=True))
            assert peer.wait_end(399).status == RESOURCE_EXHAUSTED
        assert good.call(1, b"", HEALTH_CHECK).status == OK


def test_idle_reflection_stream_is_ended_and_a_watch_is_not() -> None:
    with ToyFront(control_idle_timeout_s=0.3) as front, Peer(front.port) as peer:
        peer.send(peer.headers(1, HEALTH_WATCH), peer.data(1, framed(b""), end=True))
        peer.begin(3, REFLECTION)
        answer = peer.wait_end(3)
        assert (answer.status, "for too long" in answer.text) == (DEADLINE_EXCEEDED, True)
        assert not peer.answers[1].ended


def test_stream_of_predictions_that_sends_nothing_is_ended() -> None:
    with ToyFront(first_message_timeout_s=0.3) as front, Peer(front.port) as peer:
        peer.begin(1, PREDICT_STREAM)
        peer.begin(3, PREDICT_STREAM)
        peer.send(peer.data(1, framed(good_request())))
        answer = peer.wait_end(3)
        assert (answer.status, "for too long" in answer.text) == (DEADLINE_EXCEEDED, True)
        assert not peer.answers[1].ended  # a pause after the first message is the caller's business


def test_open_calls_are_bounded_and_leave_room_for_others() -> None:
    """2 KiB each. A connection may have as many as fit into what is left; more are safe to try again."""
    with ToyFront(max_call_bytes=1 << 20) as front, Peer(front.port) as good:
        with Peer(front.port) as greedy:
            for stream in range(1, 1001, 2):
                greedy.begin(stream, PREDICT_STREAM)
            assert greedy.wait_end(999).reset == REFUSED_STREAM
            greedy.send(greedy.data(1, framed(good_request()), end=True))
            assert greedy.wait_end(1).status == OK
            assert good.call(1, good_request()).status == OK
        assert good.call(3, good_request()).status == OK


def test_answers_of_all_connections_are_bounded() -> None:
    """Behind shut windows each connection may have as much as is left, not max_output_bytes; another goes on."""
    with (
        ToyFront(max_total_output_bytes=1 << 20, send_timeout_s=0) as front,
        ExitStack() as peers,
        Peer(front.port) as good,
    ):
        greedy = [peers.enter_context(Peer(front.port)) for _ in range(8)]
        for peer in greedy:
            peer.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}))
            request = framed(good_request(request_id="x" * 10_000))
            for stream in range(1, 201, 2):
                peer.send(peer.headers(stream), peer.data(stream, request, end=True))
            peer.ping()
        assert good.call(1, good_request()).status == OK
        for peer in greedy:
            peer.ping()
        begun = sum(len(peer.answers) for peer in greedy)
        assert 8 <= begun <= 110  # 1.1 MB of 8
        for peer in greedy:
            peer.send(WindowUpdateFrame(0, MAX_WINDOW - 65535))
            peer.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 1 << 20}))
        for peer in greedy:
            assert {peer.wait_end(stream).status for stream in range(1, 201, 2)} == {OK}


def test_stream_that_is_not_answered_is_not_read_further() -> None:
    """Messages of five bytes behind a shut window are kept as five bytes each, and go on when it opens."""
    count = 100_000
    with ToyFront(max_output_bytes=16 << 10, send_timeout_s=0) as front, Peer(front.port) as peer:
        peer.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}))
        peer.ping()
        before = front.memory_bytes()
        peer.begin(1, PREDICT_STREAM)
        body = framed(b"") * count
        for offset in range(0, len(body), 16 << 10):
            peer.send(peer.data(1, body[offset : offset + (16 << 10)]))
        peer.send(peer.data(1, b"", end=True))
        peer.ping()
        assert front.memory_bytes() - before < 8 << 20
        started = time.monotonic()
        peer.send(RstStreamFrame(1, CANCEL))
        peer.ping()
        assert time.monotonic() - started < 5


def test_requests_that_wait_for_python_are_bounded() -> None:
    """What waits for Python, and what Python works on, counts until Python has finished it."""
    from fused_mlp.service import _engine, _front

    limits = _front.Limits()
    limits.max_control_bytes = 1 << 20
    engine = _engine.Engine(workers=1)
    listener = bind("127.0.0.1", 0)
    port = port_of(listener)
    server = _front.FrontServer(
        listener=listener.detach(),
        engine=engine,
        router=_engine.Router(),
        limits=limits,
        rpcs=[(HEALTH_CHECK, False), (REFLECTION, True)],
    )
    server.start()
    server.listen()
    try:
        with Peer(port) as peer:
            body = framed(bytes(40 << 10))
            frames = [body[offset : offset + (16 << 10)] for offset in range(0, len(body), 16 << 10)]

            def ask(stream: int, path: str = HEALTH_CHECK) -> None:
                end = path == HEALTH_CHECK
                peer.begin(stream, path)
                for frame in frames:
                    peer.send(peer.data(stream, frame, end=end and frame is frames[-1]))

            peer.ping()  # with it come the SETTINGS that open the window
            ask(1, REFLECTION)
            for stream in range(3, 81, 2):
                ask(stream)
            peer.ping()
            refused = [stream for stream, answer in peer.answers.items() if answer.ended]
            assert 39 - 13 <= len(refused) < 39  # half of 1 MiB, for one connection, is 12.8 bodies
            assert all(peer.answers[stream].status == RESOURCE_EXHAUSTED for stream in refused)
            assert "wait to be handled" in peer.answers[refused[-1]].text
            for frame in frames:  # another message of a call that Python has not dealt with: it waits
                peer.send(peer.data(1, frame))
            peer.ping()
            kinds = _front.CallEventKind
            events = server.drain()
            assert sum(len(event.body) for event in events) <= 1 << 19
            assert [event.kind for event in events if event.call == events[0].call] == [
                kinds.start,
                kinds.message,
            ]

            server.message_done(events[0].call)
            select.select([server.fileno()], [], [], 20)
            assert [(event.kind, event.call) for event in server.drain()] == [(kinds.message, events[0].call)]
            for event in events:
                if event.kind is kinds.start:
                    server.finish(event.call, 0)
            for stream in range(1, 81, 2):
                peer.wait_end(stream)
            used, limit = server.stats()["memory"]["control"]
            assert (used, limit) == (0, 1 << 20)
            ask(101)
            peer.ping()
            assert [event.kind for event in server.drain()] == [kinds.start]
    finally:
        server.stop()
        engine.stop()


def test_messages_for_python_are_small() -> None:
    with ToyFront(max_message_bytes=1 << 20) as front, Peer(front.port) as peer:
        peer.begin(1, HEALTH_CHECK)
        peer.send(peer.data(1, framed(bytes((64 << 10) + 1))[:1000]))
        answer = peer.wait_end(1)
        assert (answer.status, answer.text) == (RESOURCE_EXHAUSTED, "message: expected at most 65536 bytes")
        assert peer.call(3, b"", HEALTH_CHECK).status == OK


def test_keepalive_pings_a_silent_peer_and_closes_one_that_stays_silent() -> None:
    class Counting(Peer):
        answers_pings = True
        heard = 0

        def on_ping(self, frame: PingFrame) -> None:
            self.heard += 1
            if self.answers_pings:
                super().on_ping(frame)

    with ToyFront(keepalive_s=0.2, keepalive_timeout_s=0.3) as front:
        with Counting(front.port) as polite:
            polite.wait(lambda: polite.heard == 3)
        with Counting(front.port) as mute:
            mute.answers_pings = False
            mute.wait_closed()
            assert mute.heard == 1
            assert b"keepalive_timeout_s" in reason(mute)


def test_idle_connection_is_asked_to_go() -> None:
    with ToyFront(idle_timeout_s=0.2) as front, Peer(front.port) as idle, Peer(front.port) as busy:
        busy.begin(1, HEALTH_WATCH)
        busy.send(busy.data(1, framed(b""), end=True))
        assert idle.wait_closed() == 0
        assert reason(idle) == b"no calls for idle_timeout_s"
        busy.ping()
        assert not busy.goaways


def test_page_names_every_reason() -> None:
    from fused_mlp.service import _front

    page = (Path(__file__).parents[3] / "docs" / "internals" / "native-front.md").read_text()
    stats = _front.FrontServer().stats()
    for label in (*stats["ended"], *stats["tls_failures"]):
        assert f"`{label}`" in page, label


def test_connection_age_ends_with_goaway_and_open_calls_finish() -> None:
    with ToyFront(max_connection_age_s=0.3) as front, Peer(front.port) as peer:
        peer.begin(1, PREDICT_STREAM)
        peer.wait(lambda: len(peer.goaways) == 2)
        assert peer.goaways[0].last_stream_id == MAX_WINDOW  # a notice first, the last call second
        assert peer.goaways[1].last_stream_id == 1
        assert reason(peer) == b"older than max_connection_age_s"
        peer.send(peer.data(1, framed(good_request()), end=True))
        assert peer.wait_end(1).status == OK
        assert peer.wait_closed() == 0


def test_streaming_caller_is_held_back_by_flow_control() -> None:
    """One that sends and never reads runs out of window: what it can make us hold is bounded."""
    with ToyFront(max_output_bytes=32 << 10, send_timeout_s=0) as front, Peer(front.port) as peer:
        peer.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}))
        peer.begin(1, PREDICT_STREAM)
        frame = framed(good_request(request_id="x" * 500))
        window = peer_window = 1 << 20
        updates = []
        peer._handle_stream = lambda f, a: updates.append(f)  # type: ignore[method-assign]
        while peer_window > len(frame):
            peer.send(peer.data(1, frame))
            peer_window -= len(frame)
        peer.ping()
        given_back = sum(f.window_increment for f in updates if isinstance(f, WindowUpdateFrame))
        assert given_back < window // 2


def test_half_open_tls_handshake_is_closed() -> None:
    with (
        ToyFront(handshake_timeout_s=0.3) as front,
        socket.create_connection(("127.0.0.1", front.port)) as raw,
    ):
        raw.settimeout(10)
        assert raw.recv(100)  # our SETTINGS
        while raw.recv(100):
            pass


def test_unknown_frame_types_are_ignored(strict: ToyFront) -> None:
    with Peer(strict.port) as peer:
        peer.write(b"\x00\x00\x03\xfa\x00\x00\x00\x00\x00abc")
        assert peer.call(1, good_request()).status == OK


def test_headers_frame_with_priority_and_padding_is_read(strict: ToyFront) -> None:
    with Peer(strict.port) as peer:
        plain = peer.headers(1)
        frame = HeadersFrame(1, plain.data, pad_length=9, depends_on=0, stream_weight=15)
        frame.flags.add("END_HEADERS")
        frame.flags.add("PADDED")
        frame.flags.add("PRIORITY")
        data = DataFrame(1, framed(good_request()), pad_length=200)
        data.flags.add("PADDED")
        data.flags.add("END_STREAM")
        peer.send(frame, data)
        assert peer.wait_end(1).status == OK
