# SPDX-License-Identifier: Apache-2.0
"""The GPU architectures we compile for, and the one limit of theirs that a tile must respect.
Data only: imports neither torch nor triton."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True)
class Architecture:
    """`capability` as in sm_80; `shared_bytes` is the most shared memory one block may ask for."""

    capability: int
    shared_bytes: int
    examples: str

    def __post_init__(self) -> None:
        if self.capability < 80 or self.shared_bytes % KIB:
            raise ValueError(f"not an architecture we know: {self}")

    @property
    def name(self) -> str:
        return f"sm_{self.capability}"


ARCHITECTURES = (
    Architecture(80, 163 * KIB, "A100, A30"),
    Architecture(86, 99 * KIB, "A10, A40, RTX 30"),
    Architecture(89, 99 * KIB, "L4, L40S, RTX 40"),
    Architecture(90, 227 * KIB, "H100, H200, GH200"),
    Architecture(100, 227 * KIB, "B200, GB200"),
    Architecture(120, 99 * KIB, "RTX 50, RTX PRO Blackwell"),
)
CAPABILITIES = tuple(architecture.capability for architecture in ARCHITECTURES)


def architecture_of(capability: int) -> Architecture | None:
    """The entry for a device: its own, or the closest older one of the same generation (sm_87 runs as sm_86);
    None when the device is older than sm_80 or of a generation not in the table."""
    usable = [
        entry
        for entry in ARCHITECTURES
        if entry.capability <= capability and entry.capability // 10 == capability // 10
    ]
    return max(usable, key=lambda entry: entry.capability, default=None)
