# SPDX-License-Identifier: Apache-2.0
"""The page at / of the metrics port, put together from the files in live/, and the headers that restrict it to its own
style, script and server."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fused_mlp.service.reports.style import style_sheet

_FOLDER = Path(__file__).with_name("live")
# One script element, in this order: each file may use the files before it.
_SCRIPTS = ("text", "reading", "window", "charts", "overview", "details", "main")


@dataclass(frozen=True)
class LivePage:
    body: bytes
    headers: dict[str, str]


@cache
def live_page() -> LivePage:
    script = "\n".join(['"use strict";', *(_read(f"{name}.js") for name in _SCRIPTS)])
    style = style_sheet() + _read("page.css")
    text = _read("page.html").replace("/* style */", style).replace("/* scripts */", script)
    return LivePage(
        text.encode(),
        {
            "Content-Security-Policy": _policy(text),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        },
    )


def _policy(text: str) -> str:
    """Allows this style, this script and requests to this server; everything else, such as injected code, is
    blocked."""
    allowed = {
        "default-src": "'none'",
        "style-src": _hashes(text, "style"),
        "script-src": _hashes(text, "script"),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {sources}" for name, sources in allowed.items())


def _hashes(text: str, element: str) -> str:
    contents = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
    digests = (hashlib.sha256(content.encode()).digest() for content in contents)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
