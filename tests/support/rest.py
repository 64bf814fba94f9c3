# SPDX-License-Identifier: Apache-2.0
"""The REST port of a server under test: requests through http.client, and bytes as they are."""

from __future__ import annotations

import http.client
import json
import re
import socket
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.server import Server

INFER = "/v2/models/digits/infer"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


def rest_port(server: Server) -> int:
    match = re.search(r"REST +https?://\S+:(\d+)/v2", server.banner)
    assert match, server.banner
    return int(match[1])


class RestClient:
    """One connection that is kept alive."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def ask(self, verb: str, path: str, body: bytes | str | None = None, **headers: str) -> Answer:
        """Underscores in header names are hyphens."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(verb, path, body, names)
        response = self._connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())

    def infer(self, body: object, **headers: str) -> Answer:
        return self.ask("POST", INFER, body if isinstance(body, bytes) else json.dumps(body), **headers)

    def close(self) -> None:
        self._connection.close()


def json_request(x: np.ndarray, **more: object) -> dict[str, object]:
    tensor = {"name": "input", "shape": list(x.shape), "datatype": "FP32", "data": x.tolist()}
    return {"inputs": [tensor], **more}


def binary_request(x: np.ndarray, datatype: str = "FP32", **more: object) -> tuple[bytes, dict[str, str]]:
    tensor = {
        "name": "input",
        "shape": list(x.shape),
        "datatype": datatype,
        "parameters": {"binary_data_size": x.nbytes},
    }
    head = json.dumps({"inputs": [tensor], **more}).encode()
    return head + x.tobytes(), {"Inference_Header_Content_Length": str(len(head))}


def post(body: bytes, *fields: bytes, path: str = INFER) -> bytes:
    """A request as it goes over the wire."""
    head = [b"POST " + path.encode() + b" HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def exchange(port: int, data: bytes) -> bytes:
    """What comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as wire:
        wire.sendall(data)
        return read_all(wire)


def read_all(wire: socket.socket) -> bytes:
    got = bytearray()
    while piece := wire.recv(65536):
        got += piece
    return bytes(got)


def read_until(wire: socket.socket, count: int, what: bytes = b"HTTP/1.1 ") -> bytes:
    """Until `what` has come so often."""
    got = bytearray()
    while got.count(what) < count:
        piece = wire.recv(65536)
        assert piece, bytes(got)
        got += piece
    return bytes(got)
