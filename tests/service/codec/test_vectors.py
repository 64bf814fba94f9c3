# SPDX-License-Identifier: Apache-2.0
"""Requests as bytes, and what the codec must read in them or say about them, to the letter: vectors.json. Both fronts
read with this codec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from tests.service.codec.oracle import CODECS, MESSAGES, codec_fields, protobuf_fields

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{v['api']}: {v['what']}" for v in VECTORS])
def test_vector(vector: dict[str, Any]) -> None:
    message = bytes.fromhex(vector["message"])
    request = CODECS[vector["api"]].decode(message)
    assert request.error == vector.get("error", "")
    if "decoded" in vector:
        assert codec_fields(request) == vector["decoded"]
        assert protobuf_fields(vector["api"], message) == vector["decoded"]


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if "cannot be read" in v.get("error", "")], ids=lambda v: v["what"]
)
def test_protobuf_cannot_read_them_either(vector: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        MESSAGES[vector["api"]].FromString(bytes.fromhex(vector["message"]))
