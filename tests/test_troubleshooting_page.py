# SPDX-License-Identifier: Apache-2.0
"""docs/operations/troubleshooting.md quotes texts that the code still has: a search for what was printed finds them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "operations" / "troubleshooting.md").read_text()
SOURCES = ("*.py", "*.cpp", "*.hpp")

# The parts of each text that do not depend on names and numbers.
QUOTED = [
    "error: cannot listen on",
    "does not exist",
    "is empty: expected <model>/<version>/",
    "nothing to serve in",
    "; usable here: ",
    "other machines can reach the admin port there",
    "torch sees no CUDA device",
    "is not a setting",
    "did you mean",
    "start a server with `fused-mlp serve`, or name another with --target",
    "is the server started with FUSED_MLP_ADMIN_PORT?",
    "the server closed the connection: it may want TLS",
    "the server speaks plaintext, not TLS: connect without TLS",
    "the server's certificate is not trusted: name the root CA that signed it",
    "the server's certificate is for another name: give the name that is in it",
    "it may want a client certificate, or not trust the one it got",
    ": TLS needs both",
    "the server is shutting down",
    "is still loading",
    " could not be loaded; GetModel says why",
    "FUSED_MLP_MAX_LOADED_BYTES are in use; retry later",
    "loading models",
    "no model can be served",
    "queue full: ",
    " rows are waiting",
    "message: expected at most ",
    " rows per request, got ",
    "the deadline had expired when the request was read",
    "the deadline cannot be met: ",
    "the deadline expired in the queue",
    "the deadline would expire before the kernel ends",
    "the deadline passed before the answer was ready",
    "is not served here",
    "this server does not let requests choose",
    "internal error; request id ",
    "the kernel failed; the reason is in the server's log",
    "serving UNFUSED, ",
    "kernel disagrees with the float64 reference at ",
    "is not used: ",
    "is no step of an MLP; see docs/models/index.md for those that are",
    "too_many_pings",
    "no calls for idle_timeout_s",
    "older than max_connection_age_s",
    " is ignored",
]


@cache
def sources() -> str:
    """Literals that are written over several lines count as one."""
    files = [
        path
        for folder in ("service", "kernels", "models")
        for kind in SOURCES
        for path in (ROOT / folder).rglob(kind)
    ]
    lines = "\n".join(path.read_text() for path in files if "test" not in path.name)
    return "".join(part.strip().removeprefix("f").strip('"') for part in lines.splitlines())


@pytest.mark.parametrize("text", QUOTED)
def test_quoted_text_is_on_the_page_and_in_the_code(text: str) -> None:
    page = " ".join(PAGE.split())
    assert " ".join(text.split()) in page
    assert text.removeprefix("error: ") in sources()
