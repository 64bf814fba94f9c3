# SPDX-License-Identifier: Apache-2.0
"""What a process has used, from /proc: CPU time, resident memory and its peak, threads."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Watch:
    def __init__(self, pid: int) -> None:
        self._proc = Path(f"/proc/{pid}")

    def cpu_seconds(self) -> float:
        """User and system time of all threads, also of those that have ended."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def queued_seconds(self) -> float:
        """How long its threads were ready to run while no core was free, the longest of them."""
        waits = [0]
        for task in (self._proc / "task").iterdir():
            with suppress(FileNotFoundError):  # ended meanwhile
                waits.append(int((task / "schedstat").read_text().split()[1]))
        return max(waits) / 1e9

    def resident_bytes(self) -> int:
        return self._status_kib("VmRSS") << 10

    def peak_bytes(self) -> int:
        """The most resident memory since reset_peak: the kernel keeps it, no sampling can miss it."""
        return self._status_kib("VmHWM") << 10

    def reset_peak(self) -> None:
        (self._proc / "clear_refs").write_text("5")

    def threads(self) -> int:
        return self._status_kib("Threads")

    def _status_kib(self, name: str) -> int:
        match = re.search(rf"^{name}:\s+(\d+)", (self._proc / "status").read_text(), re.MULTILINE)
        assert match, name
        return int(match[1])
