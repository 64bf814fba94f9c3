# SPDX-License-Identifier: Apache-2.0
"""Numbers and units as text, the same in the terminal and on the page."""

from __future__ import annotations

import re
from collections import Counter

from fused_mlp.kernels.profile import Point, Profile, StepCost, Sweep, SweepCell

MAX_STEPS = 24  # of a table
_GENERATED = re.compile(r"^graph_\d+_")
VARIANT_TITLES = {"eager": "eager PyTorch", "compile": "torch.compile", "fused": "fused"}
BUSY = "busy: other processes used the CPU at each of three attempts. The same command measures these cells again."


def microseconds(us: float | None) -> str:
    if us is None:
        return "—"
    return f"{us:,.1f}" if us < 100 else f"{us:,.0f}"


def size(count: int, known: bool = True) -> str:
    """`known` False: the size is a lower bound."""
    sign = "" if known else "≥ "
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{sign}{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{sign}{number:.1f} {unit}"


def regime(point: Point) -> str:
    """The limit, and how close the time comes to it. `itself`: no limit explains most of the time."""
    name = point.regime.name if point.regime.explains else "itself"
    return f"{name} {point.regime.reached:.0%}"


def counted(names: dict[str, int], longest: int = 80) -> str:
    """`addmm 3, relu 2`, the most frequent first. Names lose their namespace and are cut to `longest` characters; equal
    ones are then added up."""
    numbers: Counter[str] = Counter()
    for name, number in names.items():
        numbers[_short(name, longest)] += number
    ordered = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {number}" for name, number in ordered)


def _short(name: str, longest: int) -> str:
    name = "fused_mlp" if name == "fused_mlp::mlp" else name.rpartition("::")[2]
    name = _GENERATED.sub("", name).lstrip("_")
    return cut(name, longest)


def costliest(profile: Profile, batch: int) -> list[StepCost]:
    """The steps of a batch size in program order; for a long program, the most expensive ones."""
    steps = [step for step in profile.steps if step.batch == batch]
    if len(steps) <= MAX_STEPS:
        return steps
    kept = sorted(range(len(steps)), key=lambda at: -(steps[at].fused_us or steps[at].limit_us))[:MAX_STEPS]
    return [steps[at] for at in sorted(kept)]


def left_out(profile: Profile) -> str:
    number = len(profile.steps) // max(1, len(profile.batches))
    return f"the {MAX_STEPS} costliest of {number} steps" if number > MAX_STEPS else ""


def count(number: int) -> str:
    """`1.2 M`."""
    value = float(number)
    for unit in ("", " k", " M", " G"):
        if value < 1000 or unit == " G":
            break
        value /= 1000
    return f"{value:.0f}{unit}" if not unit or value >= 100 else f"{value:.1f}{unit}"


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def limits(profile: Profile) -> str:
    arithmetic = f"{profile.flops_per_s / 1e9:,.0f} GFLOP/s"
    if profile.int8_ops_per_s is not None:
        arithmetic += f" in float32, {profile.int8_ops_per_s / 1e9:,.0f} billion operations/s in int8"
    reading = f"{profile.bytes_per_s / 1e9:,.1f} GB/s for this model's weights"
    if profile.fused_bytes_per_s is not None:
        reading += f" in float32, {profile.fused_bytes_per_s / 1e9:,.1f} GB/s in {profile.precision}"
    return f"measured limits: {arithmetic}, and {reading}"


def model(profile: Profile) -> str:
    """`535,818 parameters, int8`."""
    kept = "" if profile.precision == "float32" else f", {profile.precision}"
    return f"{profile.parameters:,} parameters{kept}"


def weights(profile: Profile, step: StepCost) -> str:
    """Their size; for a model with some weights in fewer bits, also the precision of the weights."""
    mixed = profile.precision != "float32" and step.precision is not None
    return f"{size(step.weight_bytes)} {step.precision}" if mixed else size(step.weight_bytes)


def setting(profile: Profile) -> str:
    return f"{profile.machine['cpu']}, {profile.device}, {_threads(profile.threads)}, torch {profile.torch}"


def sweep_title(sweep: Sweep) -> str:
    kept = "" if sweep.precision == "float32" else f", fused in {sweep.precision}, eager in float32"
    return f"{sweep.model} with all its widths alike{kept}, {_threads(sweep.threads)}"


def sweep_cell(cell: SweepCell) -> str:
    if cell.busy:
        return "busy"
    return f"{cell.speedup:.1f}x" if cell.speedup < 9.95 else f"{cell.speedup:.0f}x"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
