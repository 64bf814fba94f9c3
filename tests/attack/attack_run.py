# SPDX-License-Identifier: Apache-2.0
"""A real server, a good client beside it, and the measure of an attack: what the good client noticed, what the
server spent, and the bounds on both."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fused_mlp.service.settings.limits import Limits
from tests.attack.attacker import Attacker
from tests.attack.good_client import ECHO, GoodClient
from tests.attack.watch import Watch
from tests.support import sanitized
from tests.support.server import Server

# Longer by hand: each round adds the time and the count of one run in CI.
ROUNDS = int(os.environ.get("ATTACK_ROUNDS", "1"))
SECONDS = 0.4 * ROUNDS
# After an attack its connections are closed, which is work too; the good client is watched for this much longer.
AFTERMATH_S = 0.2
WARM_UP_S = 0.2
MIN_SECONDS = 0.6  # a hundred calls, so that a p99 is more than the worst of a few

# Nothing may take a loop for longer than a good client waits for an answer that it calls late. The machines of CI
# have two cores, which the attacker, the good client and the server share: a fair turn of some 10 ms among ten
# runnable threads is 100 ms, and this leaves as much again. Where the machine is busy with other things, the echo
# shows by how much: it is added, twice, because a call passes through up to twice as many threads.
MAX_P99_S = 0.25
# A newcomer has a connection to set up, in Python.
MAX_NEWCOMER_P99_S = 1.0
# Of the good client: some 420 calls a second, at less than 1 ms each, most of it Python.
GOOD_CLIENT_CPU = 0.45
# What an honest peer can make us spend. The smallest call has 40 bytes and takes 5-10 us, the smallest frame 9
# bytes and 0.5-1 us: 0.1-0.25 us for each byte. Twice that, for slow machines.
MAX_CPU_NS_PER_BYTE = 500
# The budgets that bound what all peers together can make the server keep.
BUDGETS = ("max_buffered_bytes", "max_total_output_bytes", "max_call_bytes", "max_control_bytes")
# Small enough for an attack of a second to reach them, large enough for a good client beside it.
SMALL_BUDGETS = {
    "max_buffered_bytes": 64 << 20,
    "max_total_output_bytes": 32 << 20,
    "max_call_bytes": 16 << 20,
    "max_control_bytes": 8 << 20,
}


class Target:
    """`with Target(receive_timeout_s=1) as target:` a server with these limits, and a good client that calls it."""

    def __init__(
        self, *, settings: dict[str, Any] | None = None, ca: Path | None = None, **limits: Any
    ) -> None:
        self.ca = ca
        self.limits = Limits(**limits)
        self.server = Server(front="native", limits=json.dumps(limits), **(settings or {}))
        self.port = int(self.server.target.rpartition(":")[2])
        self.watch = Watch(self.server.process.pid)
        self.good_client = GoodClient(f"localhost:{self.port}" if ca else self.server.target, ca)
        now = time.monotonic()  # imports and first connections are no part of any attack
        warm = self.good_client.report(now, now + WARM_UP_S)
        assert not any(caller["errors"] for caller in warm.values()), warm

    def attack(self) -> AttackRun:
        return AttackRun(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.good_client.__exit__()
        self.server.stop()


@dataclass
class AttackRun:
    """From the first blow to the aftermath. Attackers made by `attacker` are closed and counted at the end."""

    target: Target

    def __enter__(self) -> Self:
        self.attackers: list[Attacker] = []
        self.watch = self.target.watch
        self.watch.reset_peak()
        self.base_bytes = self.watch.resident_bytes()
        self._cpu_before = self.watch.cpu_seconds()
        self._queued_before = self.watch.queued_seconds()
        self._since = time.monotonic()
        return self

    def attacker(self, **options: Any) -> Attacker:
        attacker = Attacker(self.target.port, **options)
        self.attackers.append(attacker)
        return attacker

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._hold()
        for attacker in self.attackers:
            attacker.__exit__()
        if kind is not None:
            return
        until = max(time.monotonic() + AFTERMATH_S, self._since + MIN_SECONDS)
        self.callers = self.target.good_client.report(self._since, until)
        self.seconds = time.monotonic() - self._since
        self.cpu_s = self.watch.cpu_seconds() - self._cpu_before
        self.queued_s = self.watch.queued_seconds() - self._queued_before
        self.growth_bytes = self.watch.peak_bytes() - self.base_bytes
        self.sent_bytes = sum(attacker.sent_bytes for attacker in self.attackers)

    def _hold(self) -> None:
        """An attack lasts its time, even if its bytes were sent in less: the server has yet to deal with them."""
        while (
            not all(attacker.gone for attacker in self.attackers) and time.monotonic() < self._since + SECONDS
        ):
            for attacker in self.attackers:
                if not attacker.deaf and not attacker.gone:
                    attacker.swallow()
            time.sleep(0.05)

    @property
    def cut_off(self) -> int:
        """How many attackers have noticed that the server ended their connection."""
        return sum(attacker.cut_off for attacker in self.attackers)

    def check(self, *, most_cpu_s: float | None = None, most_growth_bytes: float | None = None) -> None:
        """Bounds that a test can reason out more tightly, or must more loosely, replace the general ones: CPU by
        bytes sent, memory by base and budgets and 10 %."""
        __tracebackhide__ = True
        if most_cpu_s is None:
            most_cpu_s = self.sent_bytes * MAX_CPU_NS_PER_BYTE / 1e9
        most_cpu_s += GOOD_CLIENT_CPU * self.seconds
        budgets = sum(getattr(self.target.limits, name) for name in BUDGETS)
        if most_growth_bytes is None:
            most_growth_bytes = budgets + 0.1 * (self.base_bytes + budgets)
        failures = [
            f"{name}: {caller['errors']}" for name, caller in self.callers.items() if caller["errors"]
        ]
        if self.target.server.process.poll() is not None:
            failures.append(f"the server has ended: {self.target.server.log()[-2000:]}")
        print(f"\n  {self}", end="")
        if sanitized.BUILD:  # slow, and keeps what was freed: only errors count
            assert not failures, failures
            return
        busy_s = 2 * self.callers[ECHO]["p99_s"]
        for name, caller in self.callers.items():
            most = busy_s + (MAX_NEWCOMER_P99_S if name == "newcomer" else MAX_P99_S)
            if name != ECHO and caller["p99_s"] > most:
                failures.append(f"{name}: p99 of {caller['p99_s'] * 1e3:.0f} ms")
        if self.cpu_s > most_cpu_s:
            failures.append(f"CPU: {self.cpu_s:.2f} s, expected at most {most_cpu_s:.2f}")
        if self.growth_bytes > most_growth_bytes:
            failures.append(
                f"memory: {self.growth_bytes / 2**20:.0f} MiB more than the {self.base_bytes / 2**20:.0f} before, "
                f"expected at most {most_growth_bytes / 2**20:.0f}"
            )
        assert not failures, f"{'; '.join(failures)}\n{self}"

    def __str__(self) -> str:
        p99 = ", ".join(f"{name} {caller['p99_s'] * 1e3:.1f}" for name, caller in self.callers.items())
        return (
            f"{self.seconds:.1f} s, {self.sent_bytes / 2**20:.2f} MiB sent, {self.cpu_s:.2f} s of CPU "
            f"and {self.queued_s:.2f} waiting for it, "
            f"{self.growth_bytes / 2**20:+.0f} MiB, {self.cut_off} of {len(self.attackers)} cut off; p99 in ms: {p99}"
        )
