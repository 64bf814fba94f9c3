"""A flame graph's tree from a trace: forward passes laid over each other, spans of one name and place added up."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.profile.results import Flame
from kernels.profile.trace_events import Event, Node, forward_passes


def flame_of(trace: Event) -> Flame:
    """Microseconds per forward pass."""
    passes = forward_passes(trace)
    return _merge("forward", passes, max(1, len(passes)))


def _merge(name: str, nodes: Sequence[Node], passes: int) -> Flame:
    """Children in the order in which they first ran."""
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        for child in node.children:
            groups.setdefault(child.name, []).append(child)
    children = tuple(_merge(child, group, passes) for child, group in groups.items())
    return Flame(name, sum(node.us for node in nodes) / passes, len(nodes) / passes, children)
