# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/clients/rest.md get answers, in JSON and without errors."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fused_mlp.service.fronts.selection import native_front_problem
from tests.support.rest import rest_port
from tests.support.server import Server

ROOT = Path(__file__).resolve().parents[2]

if problem := native_front_problem():
    pytest.skip(problem, allow_module_level=True)


def documents(text: str) -> Iterator[Any]:
    """JSON documents, one after the other: the server ends them without a line break."""
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        document, place = decoder.raw_decode(text, place)
        yield document


def test_every_curl_line_gets_an_answer_in_json() -> None:
    with Server(front="native", rest_port=0) as server:
        page = (ROOT / "docs/clients/rest.md").read_text()
        section = page.partition("## With curl\n")[2].partition("\n## ")[0]
        script = "".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))
        script = script.replace("localhost:8000", f"127.0.0.1:{rest_port(server)}")
        done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True, timeout=30)
        answers = list(documents(done.stdout))
        assert len(answers) == script.count("curl ")
        assert not [answer for answer in answers if "error" in answer]
        assert len(answers[-1]["outputs"][0]["data"]) == 10
