# SPDX-License-Identifier: Apache-2.0
"""What was sent, by the code under which the server must count it, against what the server counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.conformance.soak.repository import STAYING
from tests.support.server import Server, sum_metric

EXACT = ("INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND")
LOOSE = "answered or cancelled"  # taken back on its way: either is right
NO_MODEL = ""  # under which requests are counted that named no model of the server


@dataclass
class Ledger:
    """Of one thread or program. `sent` has requests to models that stay, or that do not exist; `moving` those that
    a model answered of which versions come and go, with their counters. `calls`: HTTP/2 streams."""

    calls: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    moving: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: Ledger) -> None:
        self.calls += other.calls
        self.sent += other.sent
        self.moving += other.moving
        self.problems += other.problems


@dataclass(frozen=True)
class Counted:
    codes: Counter[str]
    moving: int
    calls: int


def counted_by(server: Server) -> Counted:
    text = server.get("/metrics")[1]

    def count(name: str, **labels: str) -> int:
        return int(sum_metric(text, name, labels))

    staying = ("OK", "CANCELLED", *EXACT)
    requests = "fused_mlp_requests_total"
    codes = {code: sum(count(requests, model=m, code=code) for m in (NO_MODEL, *STAYING)) for code in staying}
    known = sum(count(requests, model=model) for model in (NO_MODEL, *STAYING))
    return Counted(Counter(codes), count(requests) - known, count("fused_mlp_front_calls_total"))


def check_books(sent: Ledger, counted: Counted) -> list[str]:
    loose, codes = sent.sent[LOOSE], counted.codes
    problems = [
        f"{code}: sent {sent.sent[code]}, counted {codes[code]}"
        for code in EXACT
        if sent.sent[code] != codes[code]
    ]
    if sent.sent["OK"] + loose != codes["OK"] + codes["CANCELLED"]:
        problems.append(
            f"OK and CANCELLED: sent {sent.sent['OK']} + {loose}, counted {codes['OK']} + {codes['CANCELLED']}"
        )
    if not sent.sent["OK"] <= codes["OK"]:
        problems.append(f"OK: {sent.sent['OK']} were answered, {codes['OK']} counted")
    if counted.moving > sent.moving:
        problems.append(f"models that were reloaded: {sent.moving} answered, {counted.moving} counted")
    if counted.calls != sent.calls:
        problems.append(f"calls: {sent.calls} begun, the front counted {counted.calls}")
    return problems
