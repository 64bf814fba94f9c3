# SPDX-License-Identifier: Apache-2.0
"""gRPC over HTTP/2 on the native front, frame by frame: what the specification says of the wire."""

from __future__ import annotations

import gzip
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import unquote

import numpy as np
import pytest
from hyperframe.frame import HeadersFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.service.fronts.selection import native_front_problem
from tests.support.certificates import Certificates
from tests.support.peer import MAX_WINDOW, PREDICT, PREDICT_STREAM, Peer, framed, good_request
from tests.support.toy_front import POISON, ToyFront, expected

if problem := native_front_problem():
    pytest.skip(problem, allow_module_level=True)

OK, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, UNIMPLEMENTED, INTERNAL = 0, 3, 4, 5, 12, 13


@pytest.fixture(scope="module")
def front() -> Iterator[ToyFront]:
    with ToyFront() as running:
        yield running


@pytest.fixture
def peer(front: ToyFront) -> Iterator[Peer]:
    with Peer(front.port) as connected:
        yield connected


def request_of(x: np.ndarray, **fields) -> bytes:
    tensor = fm.Tensor(shape=x.shape, data=x.astype(np.float32).tobytes())
    return fm.PredictRequest(model="digits", input=tensor, **fields).SerializeToString()


def test_answer_has_head_message_and_trailers(peer: Peer) -> None:
    x = np.arange(128, dtype=np.float32).reshape(2, 64)
    answer = peer.call(1, request_of(x, request_id="seven"))
    assert answer.headers == {":status": "200", "content-type": "application/grpc"}
    assert answer.trailers == {"grpc-status": "0"}
    (message,) = answer.messages()
    response = fm.PredictResponse.FromString(message)
    assert response.request_id == "seven"
    np.testing.assert_array_equal(np.frombuffer(response.output.data, np.float32).reshape(2, 10), expected(x))


@pytest.mark.parametrize("size", [1, 2, 4, 5, 6, 100])
def test_message_split_anywhere_across_data_frames(peer: Peer, size: int) -> None:
    bytes_ = framed(good_request())
    pieces = [bytes_[i : i + size] for i in range(0, len(bytes_), size)]
    peer.begin(1)
    peer.send(*(peer.data(1, piece) for piece in pieces[:-1]), peer.data(1, pieces[-1], end=True))
    assert peer.wait_end(1).status == OK


def test_end_of_stream_in_a_frame_of_its_own(peer: Peer) -> None:
    peer.begin(1)
    peer.send(peer.data(1, framed(good_request())), peer.data(1, b"", end=True))
    assert peer.wait_end(1).status == OK


def test_end_of_stream_in_request_trailers(peer: Peer) -> None:
    peer.begin(1)
    trailers = HeadersFrame(1, peer._encoder.encode([("x-trailer", "1")]))
    trailers.flags.add("END_HEADERS")
    trailers.flags.add("END_STREAM")
    peer.send(peer.data(1, framed(good_request())), trailers)
    assert peer.wait_end(1).status == OK


def test_many_requests_in_one_write_are_all_answered(peer: Peer) -> None:
    frames = []
    for stream in range(1, 201, 2):
        frames += [
            peer.headers(stream),
            peer.data(stream, framed(good_request(request_id=str(stream))), end=True),
        ]
    peer.send(*frames)
    for stream in range(1, 201, 2):
        (message,) = peer.wait_end(stream).messages()
        assert fm.PredictResponse.FromString(message).request_id == str(stream)


@pytest.mark.parametrize("unit", "HMSmun")
def test_timeout_is_read_in_every_unit(peer: Peer, unit: str) -> None:
    digits = "99999999" if unit in "mun" else "100"
    answer = peer.call(1, good_request(), extra=[("grpc-timeout", digits + unit)])
    assert answer.status == (OK if unit != "n" else answer.status)
    assert peer.call(3, good_request(), extra=[("grpc-timeout", "0" + unit)]).status == DEADLINE_EXCEEDED


def test_timeout_that_is_none_is_refused(peer: Peer) -> None:
    for stream, value in zip(range(1, 9, 2), ("soon", "1", "123456789S", "-1S"), strict=True):
        assert peer.call(stream, good_request(), extra=[("grpc-timeout", value)]).status == INVALID_ARGUMENT


def test_deadline_ends_a_call_whose_message_never_comes(peer: Peer) -> None:
    peer.begin(1, extra=[("grpc-timeout", "50m")])
    assert peer.wait_end(1).status == DEADLINE_EXCEEDED
    peer.begin(3, PREDICT_STREAM, extra=[("grpc-timeout", "50m")])
    assert peer.wait_end(3).status == DEADLINE_EXCEEDED


def test_errors_are_trailers_only(peer: Peer) -> None:
    answer = peer.call(1, good_request(model="nonesuch"))
    assert answer.status == NOT_FOUND
    assert answer.headers[":status"] == "200"
    assert not answer.trailers
    assert not answer.body


def test_message_of_an_error_is_percent_encoded(peer: Peer) -> None:
    answer = peer.call(1, good_request(model="50 % ☃\n"))
    assert answer.text == "model '50 %25 %E2%98%83?' is not served here"
    assert unquote(answer.text) == "model '50 % ☃?' is not served here"


def test_internal_errors_tell_an_id_and_nothing_else(peer: Peer) -> None:
    x = np.full((1, 64), POISON, np.float32)
    assert peer.call(1, request_of(x, request_id="mine")).text == "internal error; request id mine"
    answer = peer.call(3, request_of(x))
    assert answer.status == INTERNAL
    assert answer.text.startswith("internal error; request id ")
    assert "poison" not in answer.text


def test_unknown_methods_and_services(peer: Peer) -> None:
    for stream, path in zip((1, 3, 5), ("/fused_mlp.v1.Inference/No", "/no.Such/Thing", "/"), strict=True):
        answer = peer.call(stream, b"", path)
        assert answer.status == UNIMPLEMENTED
        assert answer.headers[":status"] == "200"


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/grpc-web+proto", None])
def test_wrong_content_type_is_415(peer: Peer, kind: str | None) -> None:
    options = {"extra": [("content-type", kind)]} if kind else {"without": ["content-type"]}
    assert peer.call(1, good_request(), **options).headers[":status"] == "415"


def test_content_type_variants_of_grpc_are_taken(peer: Peer) -> None:
    for stream, kind in zip(
        (1, 3, 5), ("application/grpc", "application/grpc+proto", "application/grpc;v=1"), strict=True
    ):
        assert peer.call(stream, good_request(), extra=[("content-type", kind)]).status == OK


def test_wrong_method_is_405(peer: Peer) -> None:
    assert peer.call(1, good_request(), extra=[(":method", "PUT")]).headers[":status"] == "405"


def test_missing_te_is_refused(peer: Peer) -> None:
    answer = peer.call(1, good_request(), without=["te"])
    assert answer.status == INTERNAL
    assert "te: trailers" in answer.text


def test_unknown_headers_and_binary_metadata_are_taken(peer: Peer) -> None:
    extra = [("x-anything", "at all"), ("x-data-bin", "AAEC"), ("x-data-bin", "AAE="), ("user-agent", "me")]
    assert peer.call(1, good_request(), extra=extra).status == OK
    assert peer.call(3, b"", "/grpc.health.v1.Health/Check", extra=extra).status == OK
    assert (
        peer.call(5, b"", "/grpc.health.v1.Health/Check", extra=[("x-bin", "*")]).status == INVALID_ARGUMENT
    )


def test_gzip_request(peer: Peer) -> None:
    peer.begin(1, extra=[("grpc-encoding", "gzip")])
    peer.send(peer.data(1, framed(gzip.compress(good_request()), compressed=True), end=True))
    assert peer.wait_end(1).status == OK
    peer.begin(3, extra=[("grpc-encoding", "gzip")])  # announced, but this message is not compressed
    peer.send(peer.data(3, framed(good_request()), end=True))
    assert peer.wait_end(3).status == OK


def test_unsupported_compression_names_what_is_supported(peer: Peer) -> None:
    answer = peer.call(1, good_request(), extra=[("grpc-encoding", "snappy")])
    assert answer.status == UNIMPLEMENTED
    assert answer.headers["grpc-accept-encoding"] == "identity,gzip"


def test_broken_messages(peer: Peer) -> None:
    cases = {
        1: (framed(good_request(), compressed=True), INTERNAL, "grpc-encoding"),
        3: (b"\x02" + framed(b"")[1:], INVALID_ARGUMENT, "compressed-flag"),
        5: (framed(good_request())[:-1], INVALID_ARGUMENT, "inside a message"),
        7: (b"", INVALID_ARGUMENT, "got none"),
        9: (framed(b"") * 2, INVALID_ARGUMENT, "got more"),
        11: (framed(b"\xff"), INVALID_ARGUMENT, "cannot be read"),
        13: (b"\x00\x00", INVALID_ARGUMENT, "inside a message"),
    }
    for stream, (data, code, word) in cases.items():
        peer.begin(stream)
        peer.send(peer.data(stream, data, end=True))
        answer = peer.wait_end(stream)
        assert (answer.status, word in answer.text) == (code, True), answer
    peer.begin(15, extra=[("grpc-encoding", "gzip")])
    peer.send(peer.data(15, framed(b"no gzip", compressed=True), end=True))
    assert peer.wait_end(15).status == INVALID_ARGUMENT


def test_answer_before_the_end_of_the_request_stops_the_request(peer: Peer) -> None:
    peer.begin(1, "/no.Such/Thing")
    answer = peer.wait_end(1)
    assert answer.status == UNIMPLEMENTED
    peer.send(peer.data(1, framed(good_request())))
    peer.wait(lambda: answer.reset is not None)
    assert answer.reset == 0  # NO_ERROR: the rest is not wanted
    peer.send(peer.data(1, framed(good_request()), end=True))  # already on its way
    assert peer.call(3, good_request()).status == OK


def test_reset_is_a_cancellation_and_the_stream_is_gone(peer: Peer) -> None:
    peer.begin(1, PREDICT_STREAM)
    peer.send(peer.data(1, framed(good_request())))
    peer.wait(lambda: 1 in peer.answers and peer.answers[1].body)
    peer.send(RstStreamFrame(1, 8))
    peer.ping()
    assert not peer.answers[1].ended
    assert peer.call(3, good_request()).status == OK


def test_stream_answers_each_message_and_ends_when_the_caller_has(peer: Peer) -> None:
    peer.begin(1, PREDICT_STREAM)
    peer.send(*(peer.data(1, framed(good_request(request_id=str(i)))) for i in range(100)))
    peer.send(peer.data(1, framed(good_request(model="no", request_id="bad"))), peer.data(1, b"", end=True))
    answer = peer.wait_end(1)
    assert answer.status == OK
    responses = [fm.PredictResponse.FromString(message) for message in answer.messages()]
    assert {r.request_id for r in responses if not r.HasField("error")} == {str(i) for i in range(100)}
    (bad,) = [r for r in responses if r.HasField("error")]
    assert (bad.request_id, bad.error.code) == ("bad", NOT_FOUND)


def test_empty_stream(peer: Peer) -> None:
    peer.begin(1, PREDICT_STREAM, end=True)
    answer = peer.wait_end(1)
    assert (answer.status, answer.body) == (OK, b"")


def test_bad_framing_ends_a_stream_with_its_answers_sent(peer: Peer) -> None:
    peer.begin(1, PREDICT_STREAM)
    peer.send(peer.data(1, framed(good_request())))
    peer.wait(lambda: 1 in peer.answers and peer.answers[1].body)
    peer.send(peer.data(1, b"\x07\x00\x00\x00\x00"))
    answer = peer.wait_end(1)
    assert answer.status == INVALID_ARGUMENT
    assert len(answer.messages()) == 1


def test_answers_wait_for_the_callers_window(peer: Peer) -> None:
    peer.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 10}))
    peer.on_data = lambda frame: None  # type: ignore[method-assign]
    x = np.ones((40, 64), np.float32)
    peer.send(peer.headers(1), peer.data(1, framed(request_of(x)), end=True))
    peer.wait(lambda: 1 in peer.answers and peer.answers[1].body)
    peer.ping()
    assert len(peer.answers[1].body) == 10
    while not peer.answers[1].ended:
        peer.send(WindowUpdateFrame(1, 100))
        peer.ping()
    (message,) = peer.answers[1].messages()
    assert list(fm.PredictResponse.FromString(message).output.shape) == [40, 10]


def test_large_message_both_ways_within_flow_control(peer: Peer) -> None:
    x = np.random.default_rng(0).random((4000, 64), np.float32)
    data = framed(request_of(x))
    peer.ping()  # with it come the SETTINGS that open the window
    window, sent = peer.settings[SettingsFrame.INITIAL_WINDOW_SIZE], 0
    peer.begin(1)
    for offset in range(0, len(data), 16384):
        piece = data[offset : offset + 16384]
        sent += len(piece)
        assert sent <= window, "the message fits the window the server gives"
        peer.send(peer.data(1, piece, end=offset + 16384 >= len(data)))
    (message,) = peer.wait_end(1).messages()
    output = np.frombuffer(fm.PredictResponse.FromString(message).output.data, np.float32)
    np.testing.assert_array_equal(output.reshape(4000, 10), expected(x))


def test_refusal_waits_for_the_request_also_after_idleness() -> None:
    """curl 7.88 hangs when the answer comes before it has sent its body."""
    with ToyFront() as front, Peer(front.port) as peer:
        peer.ping()
        time.sleep(1.2)  # the idleness under test: the next sweep is due
        began = time.monotonic()
        peer.begin(1, "/nonesuch.Service/Method")
        peer.ping()
        assert 1 not in peer.answers or time.monotonic() - began > 0.05  # it waits no longer than that
        peer.send(peer.data(1, framed(b""), end=True))
        assert peer.wait_end(1).status == UNIMPLEMENTED


def test_drain_answers_what_came_before_the_peer_knew_and_closes() -> None:
    with ToyFront() as front, Peer(front.port) as peer:
        peer.begin(1, PREDICT_STREAM)
        peer.send(peer.data(1, framed(good_request())))
        peer.wait(lambda: 1 in peer.answers and peer.answers[1].body)
        late: list[int] = []

        def on_ping(frame) -> None:
            """A call that was on its way when the server said GOAWAY: sent before its ping is answered."""
            peer.send(peer.headers(3), peer.data(3, framed(good_request()), end=True))
            late.append(3)
            Peer.on_ping(peer, frame)

        peer.on_ping = on_ping  # type: ignore[method-assign]
        front.drain()
        peer.wait(lambda: len(peer.goaways) == 2)
        assert late
        assert peer.wait_end(3).status == OK
        assert [goaway.last_stream_id for goaway in peer.goaways] == [MAX_WINDOW, 3]
        peer.send(peer.headers(5), peer.data(5, framed(good_request()), end=True))  # its client retries it
        peer.ping()
        assert 5 not in peer.answers
        assert not peer.answers[1].ended
        peer.send(peer.data(1, b"", end=True))
        assert peer.wait_end(1).status == OK
        assert peer.wait_closed() == 0
        with pytest.raises(ConnectionError):
            Peer(front.port)


def test_what_a_peer_still_sends_during_the_drain_does_not_cost_it_its_answers() -> None:
    """To close with bytes unread resets the connection, and with it whatever the peer has not read yet."""
    with ToyFront() as front, Peer(front.port) as peer:
        peer.ping()

        def on_ping(frame) -> None:
            peer.send(peer.headers(1), peer.data(1, framed(good_request()), end=True))
            Peer.on_ping(peer, frame)
            for stream in range(3, 603, 2):
                peer.send(peer.headers(stream), peer.data(stream, framed(good_request()), end=True))

        peer.on_ping = on_ping  # type: ignore[method-assign]
        front.drain()
        assert peer.wait_closed() == 0
        last = peer.goaways[-1].last_stream_id
        assert last >= 1
        assert all(peer.answers[stream].status == OK for stream in range(1, last + 1, 2))
        assert max(peer.answers) == last


def test_connections_that_arrive_when_the_drain_begins_get_goaway() -> None:
    """A reset would fail the calls of their clients; GOAWAY sends them elsewhere."""
    with ToyFront() as front, Peer(front.port) as keeps_it_open, ExitStack() as stack:
        keeps_it_open.begin(1, PREDICT_STREAM)
        keeps_it_open.ping()
        arrivals = [stack.enter_context(Peer(front.port)) for _ in range(50)]
        front.drain()
        for arrival in arrivals:
            assert arrival.wait_closed() == 0
            assert arrival.goaways[-1].last_stream_id == 0
            assert arrival.goaways[-1].additional_data == b"the server is stopping"


def test_calls_answered_by_python(peer: Peer) -> None:
    answer = peer.call(1, b"", "/grpc.health.v1.Health/Check")
    assert (answer.status, answer.messages()) == (OK, [b"\x08\x01"])
    peer.begin(3, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    for text in (b"one", b"two"):
        peer.send(peer.data(3, framed(text)))
        peer.wait(lambda text=text: 3 in peer.answers and text in peer.answers[3].body)
    peer.send(peer.data(3, b"", end=True))
    assert peer.wait_end(3).messages() == [b"one", b"two"]
    peer.begin(5, "/grpc.health.v1.Health/Watch")
    peer.send(peer.data(5, framed(b""), end=True))
    peer.wait(lambda: 5 in peer.answers and peer.answers[5].body)
    peer.send(RstStreamFrame(5, 8))
    assert peer.call(7, b"", "/grpc.health.v1.Health/Check").status == OK


def tls_context(
    certificates: Certificates, *, alpn: list[str] | None = None, client: bool = False
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    context.set_alpn_protocols(["h2"] if alpn is None else alpn)
    if client:
        context.load_cert_chain(certificates.client, certificates.client_key)
    return context


def answers_ping(front: ToyFront, tls: ssl.SSLContext | None) -> bool:
    try:
        with Peer(front.port, tls=tls) as peer:
            peer.ping()
            return True
    except (OSError, AssertionError):
        return False


def test_tls_answers_and_takes_no_other_protocol(certificates: Certificates) -> None:
    with ToyFront(tls=certificates.server_files()) as front:
        with Peer(front.port, tls=tls_context(certificates)) as peer:
            for stream in range(1, 101, 2):
                assert peer.call(stream, good_request()).status == OK
            x = np.ones((3000, 64), np.float32)
            data = framed(request_of(x))
            peer.send(peer.headers(201))
            for offset in range(0, len(data), 16384):
                peer.send(peer.data(201, data[offset : offset + 16384], end=offset + 16384 >= len(data)))
            assert peer.wait_end(201).status == OK
        assert not answers_ping(front, tls_context(certificates, alpn=["http/1.1"]))
        assert not answers_ping(front, tls_context(certificates, alpn=[]))
        assert not answers_ping(front, None)


def test_client_certificates_when_asked_for(certificates: Certificates) -> None:
    with ToyFront(tls=certificates.server_files(client_ca=True)) as front:
        with Peer(front.port, tls=tls_context(certificates, client=True)) as peer:
            assert peer.call(1, good_request()).status == OK
        assert not answers_ping(front, tls_context(certificates))


def test_prefix_length_is_big_endian(peer: Peer) -> None:
    message = good_request()
    peer.begin(1)
    peer.send(peer.data(1, b"\0" + struct.pack("<I", len(message)) + message, end=True))
    assert peer.wait_end(1).status in (INVALID_ARGUMENT, 8)


def test_path_is_what_decides(peer: Peer) -> None:
    assert PREDICT.count("/") == 2
    assert peer.call(1, good_request(), PREDICT + "/").status == UNIMPLEMENTED
