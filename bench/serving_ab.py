"""What the A/B machinery costs: the plain server twice (how far two that are the same come apart), one that deals out
every request but sends almost none to the other variant, by turn and by key, and one that compares 1 % of its batches.
A real split costs what the slower variant costs; that is what it is there to show, and not measured here."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from bench.serving_load import LOADS, Load, measure, request_for, verify, write_frame
from bench.serving_systems import service

PLAIN = "off"
# One request in a million goes to the other variant; all the others are dealt out just the same.
HARDLY = 1e-6
SYSTEMS: dict[str, dict[str, object]] = {
    PLAIN: {},
    "off, a second server": {},
    "split on, in turn": {"split": HARDLY},
    "split on, by x-ab-key": {"split": HARDLY},
    "shadow 1 %": {"shadow": 0.01},
}
HEADERS = {"split on, by x-ab-key": ("x-ab-key: user-4711",)}
MODEL = "digits"  # the smaller the model, the more of the time is ours


def measure_ab(
    repository: Path, options: argparse.Namespace, folder: Path, console: Console
) -> dict[str, Any]:
    frame = write_frame(folder / "ab.frame", request_for(MODEL, 1).SerializeToString())
    samples: dict[str, dict[str, list[dict[str, float]]]] = {n: {str(o): [] for o in LOADS} for n in SYSTEMS}
    with ExitStack() as stack:
        systems = [
            stack.enter_context(service(name, repository, options.priority, transport="native", **settings))
            for name, settings in SYSTEMS.items()
        ]
        for system in systems:
            verify(system, repository, MODEL, 1)
        for turn in range(options.rounds):
            for outstanding in LOADS:
                # The other way round every second time: whoever comes first finds the machine cooler.
                for system in systems if turn % 2 == 0 else systems[::-1]:
                    headers = HEADERS.get(system.name, ())
                    load = Load(frame, *LOADS[outstanding], options.priority, headers=headers)
                    sample = measure(system, load, options.seconds)
                    samples[system.name][str(outstanding)].append(sample.as_dict())
                    console.print(
                        f"[dim]A/B, round {turn + 1}, {outstanding} outstanding: "
                        f"{system.name} {sample.rate:,.0f} req/s"
                    )
        compared = {
            outcome: systems[-1].metric("fused_mlp_shadow_batches_total", f'outcome="{outcome}"')
            for outcome in ("compared", "skipped", "failed")
        }
    return {"model": MODEL, "samples": samples, "shadow_batches": compared}


def change(result: dict[str, Any], system: str, outstanding: int, field: str) -> float:
    """The median over the rounds of the change against the plain server in the same round, in percent."""
    ours, plain = (result["samples"][name][str(outstanding)] for name in (system, PLAIN))
    return 100 * (median(a[field] / b[field] for a, b in zip(ours, plain, strict=True)) - 1)


def cost_table(result: dict[str, Any]) -> str:
    lines = [
        "| A/B machinery | " + " | ".join(f"{n} outstanding: req/s, p50, p99" for n in LOADS) + " |",
        "|---|" + "---|" * len(LOADS),
    ]
    plain = {
        n: [median(s[f] for s in result["samples"][PLAIN][str(n)]) for f in ("rate", "p50_ms", "p99_ms")]
        for n in LOADS
    }
    absolute = (f"{rate:,.0f}, {p50:.3f} ms, {p99:.3f} ms" for rate, p50, p99 in plain.values())
    lines.append(f"| {PLAIN} | " + " | ".join(absolute) + " |")
    for system in list(SYSTEMS)[1:]:
        cells = (
            ", ".join(f"{change(result, system, n, field):+.1f} %" for field in ("rate", "p50_ms", "p99_ms"))
            for n in LOADS
        )
        lines.append(f"| {system} | " + " | ".join(cells) + " |")
    counts = ", ".join(f"{int(count)} {outcome}" for outcome, count in result["shadow_batches"].items())
    return "\n".join(lines) + f"\n\nBatches chosen by the shadow: {counts}."
