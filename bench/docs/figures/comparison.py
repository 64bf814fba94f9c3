# SPDX-License-Identifier: Apache-2.0
"""Figures of `python -m bench.serving.servers`: this server beside other servers with the same model."""

from __future__ import annotations

from typing import Any

from bench.docs.markdown import paragraphs, provenance, table
from bench.docs.registry import Result, Results, figure

MOST = "128"


def _versioned(result: Result, system: dict[str, Any]) -> str:
    """Ours has none, because the commit beneath the table says it."""
    version = "" if system["ours"] else result["versions"].get(system["package"], "")
    return f"{system['title']} {version}".strip()


def _name(result: Result, system: dict[str, Any]) -> str:
    return f"{_versioned(result, system)} ({system['kind']})"


def _fastest_first(result: Result) -> list[dict[str, Any]]:
    systems: list[dict[str, Any]] = list(result["systems"].values())
    return sorted(systems, key=lambda system: -system["loads"][MOST]["rate"])


@figure("servers-table")
def servers_table(results: Results) -> str:
    """Requests per second, latency and CPU per request of this server and of others, by requests per second."""
    result = results["servers"]
    rows = []
    for system in _fastest_first(result):
        name = _name(result, system)
        p50, p99, cpu = (system["loads"][MOST][field] for field in ("p50_ms", "p99_ms", "cpu_us"))
        rows.append(
            [
                f"**{name}**" if system["ours"] else name,
                *(f"{system['loads'][str(n)]['rate']:,.0f}" for n in result["loads"]),
                f"{p50:.1f} / {p99:.1f} ms",
                f"{cpu:,.0f} us",
            ]
        )
    first, *others = result["loads"]
    heads = [
        f"{result['shape']}, one row per request", f"req/s at {first} outstanding", *(f"at {n}" for n in others),
        f"p50 / p99 at {MOST}", f"server CPU per request at {MOST}",
    ]  # fmt: skip
    left_out = "; ".join(f"{title} ({why})" for title, why in result["left_out"].items())
    rounds = result["rounds"]
    return paragraphs(
        table(heads, rows),
        f"Not in this run: {left_out}." if left_out else "",
        f"Medians of {rounds} rounds." if rounds > 1 else "One round.",
        provenance(result),
    )


@figure("servers-setup")
def servers_setup(results: Results) -> str:
    """How each of these servers was set up: protocol, workers and batches."""
    result = results["servers"]
    return "\n".join(
        f"* {_name(result, system)}: {system['setup']}." for system in result["systems"].values()
    )


@figure("servers-versions")
def servers_versions(results: Results) -> str:
    """One sentence: the versions of the servers that were measured."""
    result = results["servers"]
    named: dict[str, str] = {}
    for system in result["systems"].values():
        if not system["ours"]:
            named.setdefault(system["package"], _versioned(result, system))
    return f"We measured these versions: {', '.join(named.values())}."
