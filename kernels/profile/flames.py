# SPDX-License-Identifier: Apache-2.0
"""The tree of a flame graph, from one forward pass of a trace. Sibling spans of the same name are added up."""

from __future__ import annotations

from collections.abc import Sequence

from fused_mlp.kernels.profile.results import Flame
from fused_mlp.kernels.profile.trace_events import Event, Node, forward_passes


def flame_of(trace: Event) -> Flame:
    """Of the pass with the median time: a mean would be distorted by an interrupted pass."""
    passes = sorted(forward_passes(trace), key=lambda each: each.us)
    return _merge("forward", passes[len(passes) // 2 :][:1])


def _merge(name: str, nodes: Sequence[Node]) -> Flame:
    """Children in the order in which they first ran."""
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        for child in node.children:
            groups.setdefault(child.name, []).append(child)
    children = tuple(_merge(child, group) for child, group in groups.items())
    category = nodes[0].category if nodes else ""
    return Flame(name, sum(node.us for node in nodes), len(nodes), children, category)
