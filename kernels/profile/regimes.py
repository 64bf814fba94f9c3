# SPDX-License-Identifier: Apache-2.0
"""The limit that bounds a forward pass, the advice that follows, and whether the times can be believed:
problems make them invalid, notes limit what they mean, as in the reports of `fused-mlp ab`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fused_mlp.kernels.profile.results import Point, Regime, RegimeName

# A smaller gain is within noise.
_WORTH_IT = 1.1
# Shares of the time that the threads need. The times are the best of many calls: short waits do not show in them.
MISSING_SHARE_INVALID = 0.2
MISSING_SHARE_NOTED = 0.05
# The kernel alone is a part of the call from torch. If it takes longer, that is noise.
SLOWER_INVALID = 1.05


def classify(time_us: float, overhead_us: float, memory_us: float, compute_us: float) -> Regime:
    """The largest of the three times is the bound: a perfect implementation of the same calls would still take it."""
    bounds: dict[RegimeName, float] = {"overhead": overhead_us, "memory": memory_us, "compute": compute_us}
    name = max(bounds, key=lambda each: bounds[each])
    return Regime(name, overhead_us, memory_us, compute_us, min(1.0, bounds[name] / time_us))


def advise(
    eager: Point, fused: Point | None, compiled: Point | None = None, precision: str = "float32"
) -> str:
    """For one batch size. `precision`: of the weights of the fused kernel."""
    regime = eager.regime
    start = f"batch {eager.batch} is "
    if not regime.explains:
        start += (
            f"at no limit in eager: of {_number(eager.time_us)} us calling explains {_number(regime.overhead_us)}, "
            f"reading and arithmetic {_number(regime.arithmetic_us)}, the rest is how eager computes"
        )
    elif regime.name == "overhead":
        idle = 1.0 - min(1.0, regime.arithmetic_us / eager.time_us)
        start += f"dispatch-bound in eager: {idle:.0%} of its time is not arithmetic"
    elif regime.name == "memory":
        start += f"memory-bound in eager: reading the weights takes {_share(regime.memory_us, eager.time_us)}"
    else:
        start += f"compute-bound in eager, at {regime.reached:.0%} of the machine's peak"
    return f"{start}; {_consequence(eager, fused, compiled, precision)}"


def _consequence(eager: Point, fused: Point | None, compiled: Point | None, precision: str) -> str:
    if fused is None:
        return "there is no fused kernel to compare it with"
    saved = eager.time_us - fused.time_us
    fusing = "fusing" if precision == "float32" else f"fusing in {precision}"
    if fused.speedup >= _WORTH_IT:
        text = f"{fusing} removes {_share(saved, eager.time_us)} ({fused.speedup:.1f}x)"
    elif fused.speedup > 1 / _WORTH_IT:
        text = f"{fusing} changes little ({fused.speedup:.2f}x)"
        if precision == "float32" and eager.regime.explains and eager.regime.name != "overhead":
            text += ": there is no overhead left to remove"
    else:
        text = f"do not fuse here: it takes {1 / fused.speedup:.1f}x as long"
    if fused.kernel_us is not None and fused.kernel_us * _WORTH_IT < fused.time_us:
        text += f"; called from torch {_time(fused.time_us)}, in the service {_time(fused.kernel_us)}"
    if compiled is not None and compiled.time_us * _WORTH_IT < fused.time_us:
        text += f"; torch.compile is faster still ({compiled.speedup:.1f}x)"
    return text


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


def _share(part_us: float, whole_us: float) -> str:
    """`31 of 42 us`, both in the unit of the whole."""
    if whole_us < 10_000:
        return f"{_number(part_us)} of {_number(whole_us)} us"
    return f"{_number(part_us / 1000)} of {_number(whole_us / 1000)} ms"


def _time(us: float) -> str:
    return f"{us:,.1f} us" if us < 100 else f"{us:,.0f} us"


def _number(us: float) -> str:
    return f"{us:,.1f}" if abs(us) < 10 else f"{us:,.0f}"
