# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/clients/languages.md: the page shows the files as they are, and those that can run here do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deploy.cluster.packages import ROOT
from tests.support.compiled_clients import EXAMPLES, client
from tests.support.server import Server

SHOWN = [
    "python/example.py",
    "go/main.go",
    "java/Example.java",
    "cpp/example.cpp",
    "node/example.js",
    "rust/src/main.rs",
]


def test_the_page_shows_the_examples_as_they_are() -> None:
    page = (ROOT / "docs" / "clients" / "languages.md").read_text()
    blocks = re.findall(r"^```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [name for name in SHOWN if Path(EXAMPLES, name).read_text() not in blocks] == []


@pytest.mark.parametrize("name", ["grpcio", "grpc-go", "grpc-java", "grpc-c++", "grpc-js"])
def test_the_example_runs(server: Server, name: str) -> None:
    assert client(name).example.run(server.target) == "digit 4\n"
