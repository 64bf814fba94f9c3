# SPDX-License-Identifier: Apache-2.0
"""Whether the times of a profile can be believed: problems make them invalid, notes limit what they mean, as in the
reports of `fused-mlp ab`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fused_mlp.kernels.profile.results import Point

# Of the time that the threads need. The times are the best of many calls: short waits do not show in them.
MISSING_SHARE_INVALID = 0.2
MISSING_SHARE_NOTED = 0.05
# The kernel alone is a part of the call from torch. If it takes longer, that is noise.
SLOWER_INVALID = 1.05


def judge(missing: Mapping[int, float], points: Sequence[Point]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Problems and notes. `missing`: by batch size, the share of the time for which no core was free."""
    problems: list[str] = []
    notes: list[str] = []
    batch, share = max(missing.items(), key=lambda item: item[1], default=(0, 0.0))
    line = f"other processes used the CPU: for {share:.0%} of the time at batch {batch} no core was free"
    if share > MISSING_SHARE_INVALID:
        problems.append(f"{line}; measure again when the machine is calm")
    elif share > MISSING_SHARE_NOTED:
        notes.append(f"{line}; the times are the best of many calls, and may still be too long")
    for point in points:
        if point.kernel_us is None or point.kernel_us <= point.time_us:
            continue
        line = (
            f"batch {point.batch}: the kernel alone measured {point.kernel_us:,.1f} us, longer than the call "
            f"from torch that contains it ({point.time_us:,.1f} us)"
        )
        if point.kernel_us > SLOWER_INVALID * point.time_us:
            problems.append(f"{line}; measure again with a larger --budget")
        else:
            notes.append(f"{line}: the difference is below the noise")
    return tuple(problems), tuple(notes)
