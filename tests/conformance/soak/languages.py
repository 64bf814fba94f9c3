# SPDX-License-Identifier: Apache-2.0
"""Stock clients of other languages: the load programs of tests/conformance, round after round."""

from __future__ import annotations

import json
import threading
import time

from tests.conformance.soak.books import Ledger
from tests.support.compiled_clients import Program

CALLS, AT_ONCE, DEADLINE_MS = 1000, 4, 60_000
CLIENTS = ("grpc-go", "grpc-c++", "grpc-js")


class Language(threading.Thread):
    def __init__(self, name: str, load: Program, target: str, until: float) -> None:
        super().__init__(name=name)
        self._load, self._target, self._until = load, target, until
        self.ledger = Ledger()

    def run(self) -> None:
        try:
            while time.monotonic() < self._until and not self.ledger.problems:
                report = json.loads(self._load.run(self._target, CALLS, AT_ONCE, DEADLINE_MS))
                self.ledger.calls += report["sent"]
                self.ledger.sent["OK"] += report["ok"]
                if (report["sent"], report["ok"]) != (CALLS, CALLS):
                    self.ledger.problems.append(f"{self.name}: {report}")
        except (AssertionError, OSError) as error:
            self.ledger.problems.append(f"{self.name}: {error}")
