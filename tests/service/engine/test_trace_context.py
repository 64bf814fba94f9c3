# SPDX-License-Identifier: Apache-2.0
"""The header traceparent, as W3C Trace Context has it: what is broken is ignored."""

import pytest

from fused_mlp.service._engine import TraceContext

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"42-{TRACE}-{SPAN}-01-later-versions-add-fields", True),
    ],
)
def test_headers_that_are_taken(header: str, sampled: bool) -> None:
    context = TraceContext(header)
    assert (context.trace_id, context.sampled) == (TRACE, sampled)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"0x-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
        f"42-{TRACE}-{SPAN}-01.",
        f"00-{TRACE[:-1]}\u00e9-{SPAN}-01",
    ],
)
def test_headers_that_are_ignored(header: str) -> None:
    context = TraceContext(header)
    assert (context.trace_id, context.sampled) == ("", False)
