# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/clients/rest.md get answers, in JSON and without errors."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from fused_mlp.service.fronts.selection import native_front_problem
from tests.support.rest import rest_port
from tests.support.server import Server

ROOT = Path(__file__).resolve().parents[2]

if problem := native_front_problem():
    pytest.skip(problem, allow_module_level=True)


def test_every_curl_line_gets_an_answer_in_json() -> None:
    with Server(front="native", rest_port=0) as server:
        blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/clients/rest.md").read_text(), re.DOTALL)
        (script,) = [block for block in blocks if "localhost:8000" in block]
        script = script.replace("localhost:8000", f"127.0.0.1:{rest_port(server)}")
        script = re.sub(r"^(curl .*?[^\\])$", r"\1; echo", script, flags=re.MULTILINE | re.DOTALL)
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, timeout=30)
        answers = [json.loads(line) for line in done.stdout.splitlines() if line]
        assert len(answers) == script.count("curl ")
        assert not [answer for answer in answers if "error" in answer]
        assert len(answers[-1]["outputs"][0]["data"]) == 10
