# SPDX-License-Identifier: Apache-2.0
"""Figures of proxies and of models beside each other."""

from __future__ import annotations

import math
from typing import Any

from bench.docs.figures.serving import MODEL_TITLES
from bench.docs.markdown import paragraphs, provenance, span, table
from bench.docs.registry import Result, Results, figure

REPLICA_CORES, ENVOY_WORKERS, UTILISATION, RATE = 4, 16, 0.6, 1_000_000
DIRECT, BALANCED, ONE_ENVOY, MAX_ENVOY = (
    "one server, directly", "balanced in the client, 2 servers", "Envoy, 1 server", "Envoy, 3 servers",
)  # fmt: skip


def _proxy(result: Result, model: str, setup: str, key: str) -> float | None:
    found: float | None = result["models"][model][setup].get(key)
    return found


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} us" if value < 10 else f"{value:.0f} us"


@figure("proxy-table")
def proxy_table(results: Results) -> str:
    """The cost of Envoy: requests per second, CPU per request of servers, proxy and client."""
    result = results["proxy"]
    parts = []
    for model, setups in result["models"].items():
        clients = result["grpc_go_us"] if model == "digits" else {}
        rows = []
        for setup in setups:
            rate = _proxy(result, model, setup, "rate") or 0.0
            row = [
                setup,
                f"{rate:,.0f}",
                *(_us(_proxy(result, model, setup, key)) for key in ("server_us", "envoy_us")),
            ]
            if clients:
                row.append(_us(clients[setup]) if setup in clients else "")
            rows.append(row)
        heads = [
            MODEL_TITLES[model],
            "req/s",
            "CPU per request: servers",
            "Envoy",
            *(["grpc-go client"] if clients else []),
        ]
        parts.append(table(heads, rows))
    return paragraphs(*parts, provenance(result))


@figure("proxy-summary")
def proxy_summary(results: Results) -> str:
    """Sentences: CPU of the hop beside that of the server."""
    result = results["proxy"]
    said = []
    for model, setups in result["models"].items():
        hops = [us for s in setups if (us := _proxy(result, model, s, "envoy_us")) is not None]
        server = _proxy(result, model, DIRECT, "server_us") or math.nan
        said.append(
            f"For {MODEL_TITLES[model]} Envoy takes {span(min(hops), max(hops), '{:.0f}')} us of CPU per call, "
            "and the server "
            f"{_us(server)}."
        )
    clients = [_us(result["grpc_go_us"][name]) for name in (DIRECT, BALANCED)]
    said.append(
        f"Balancing in a grpc-go client costs {clients[1]} per call with two servers, against {clients[0]} with one."
    )
    return " ".join(said)


@figure("proxy-plan")
def proxy_plan(results: Results) -> str:
    """A fleet for a million requests a second, on paper: cores with and without a proxy."""
    result = results["proxy"]
    server = {
        "client": _proxy(result, "mnist", BALANCED, "server_us"),
        "envoy": _proxy(result, "mnist", MAX_ENVOY, "server_us"),
    }
    envoy_us = _proxy(result, "mnist", MAX_ENVOY, "envoy_us") or 0.0
    busy: dict[str, float] = {name: (us or 0.0) * RATE / 1e6 for name, us in server.items()}
    needed = {name: math.ceil(cores / UTILISATION) for name, cores in busy.items()}
    replicas = {name: math.ceil(cores / REPLICA_CORES) + 1 for name, cores in needed.items()}
    envoy_cores = math.ceil(envoy_us * RATE / 1e6 / UTILISATION)
    envoys = math.ceil(envoy_cores / ENVOY_WORKERS) + 1
    total = {
        "client": replicas["client"] * REPLICA_CORES,
        "envoy": replicas["envoy"] * REPLICA_CORES + envoys * ENVOY_WORKERS,
    }
    gigabits = RATE * 784 * 4 * 8 / 1e9

    def both(text: str, values: dict[str, Any]) -> list[str]:
        return [text, f"{values['client']}", f"{values['envoy']}"]

    rows = [
        both("servers: CPU per request", {name: _us(us) for name, us in server.items()}),
        both(f"cores at work at {RATE:,} req/s", {name: math.ceil(cores) for name, cores in busy.items()}),
        both(f"cores at a utilisation of {UTILISATION}", needed),
        both(f"replicas of {REPLICA_CORES} cores, one more for a failure", replicas),
        ["Envoy: CPU per request", "", _us(envoy_us)],
        [f"Envoy cores at {UTILISATION}", "", str(envoy_cores)],
        [f"Envoys of {ENVOY_WORKERS} workers, one more for a failure", "", str(envoys)],
        ["network into the servers", f"{gigabits:.0f} Gbit/s", "the same, and once more into Envoy"],
        ["**cores in all, clients aside**", f"**{total['client']}**", f"**{total['envoy']}**"],
    ]
    return paragraphs(table(["", "in the client", "through Envoy"], rows), provenance(result))


@figure("neighbours-table")
def neighbours_table(results: Results) -> str:
    """A small model beside a large one in the same server: latency of the small one, rows of the other, health."""
    from bench.serving.neighbours import ALONE, BIG_ALONE

    result = results["neighbours"]
    rows = []
    for name, found in result["situations"].items():
        probe, other, against = (found.get(key) for key in ("probe", "other", "p99_of_alone"))
        of_alone = f", {found['rows_of_alone']:.2f}x" if "256 rows" in name else ""
        rows.append(
            [
                name,
                f"{probe['p50_ms']:.2f}, {probe['p99_ms']:.2f} ms" if probe else "",
                f"{against:.1f}x" if against and name != ALONE else "",
                f"{other['rows_per_s']:,.0f}{of_alone}" if other else "",
                f"{', '.join(f'{ms:.1f}' for ms in found['health'].values())} ms",
            ]
        )
    heads = [
        f"digits, one row, {result['probe_rps']} req/s", "p50, p99", "p99 against alone",
        f"the other: rows/s, against {BIG_ALONE}", "health, connect, /readyz",
    ]  # fmt: skip
    return paragraphs(table(heads, rows), provenance(result))
