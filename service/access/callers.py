# SPDX-License-Identifier: Apache-2.0
"""The lists of FUSED_MLP_CALLERS: callers that may administer the server or read its metrics, one per line, by a name
in a verified client certificate or by the SHA-256 of a token. Knows nothing of gRPC or HTTP."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

NAMES = ("CN:", "DNS:", "URI:")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})(?:\s+#.*)?")


@dataclass(frozen=True)
class Listed:
    """names: of certificates; digests: SHA-256 of tokens, in hexadecimal."""

    names: frozenset[str]
    digests: frozenset[str]


def read_list(path: Path, *, certificates: bool) -> Listed:
    """`certificates`: clients show one that was verified. Raises OSError, or ValueError in one line."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    names, digests = set(), set()
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):  # not at the end of a name, which may hold one
            continue
        if digest := _DIGEST.fullmatch(line):
            digests.add(digest[1])
        elif line.startswith(NAMES) and certificates:
            names.add(line)
        elif line:  # not shown: it may be a token
            raise ValueError(f"{path}, line {number}: {_expected(line, certificates)}")
    if not names and not digests:
        raise ValueError(f"{path}: expected at least one caller, got none")
    return Listed(frozenset(names), frozenset(digests))


def _expected(line: str, certificates: bool) -> str:
    if line.startswith(NAMES):
        return "a name in a certificate, but clients are not asked for one here"
    names = f"{', '.join(f'{kind}<name>' for kind in NAMES)} or " if certificates else ""
    return f"expected {names}sha256:<64 hexadecimal digits in lower case>"
