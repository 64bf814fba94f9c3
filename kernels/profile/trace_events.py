# SPDX-License-Identifier: Apache-2.0
"""Builds the call tree, and the tree of a flame graph, from the profiler's exported events (Chrome's trace format).
Sibling spans of the same name are added up in a flame graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fused_mlp.kernels.profile.results import Flame

FORWARD = "forward"  # the annotation around one forward pass

Event = dict[str, Any]


@dataclass
class Node:
    """A span and the spans inside it, on one thread. Times in microseconds."""

    name: str
    category: str
    start: float
    end: float
    args: Event
    children: list[Node] = field(default_factory=list)

    @property
    def us(self) -> float:
        return self.end - self.start

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.walk()


def forward_passes(trace: Event) -> list[Node]:
    """The trees under each `forward`, in order."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    marks = [event for event in events if event["name"] == FORWARD and event.get("cat") == "user_annotation"]
    if not marks:
        return []
    thread = marks[0]["tid"]
    spans = [event for event in events if event["tid"] == thread and event.get("cat") != "Trace"]
    found = []
    for root in _nest(spans):
        found += [node for node in root.walk() if node.name == FORWARD and node.category == "user_annotation"]
    return found


def _nest(events: list[Event]) -> list[Node]:
    roots: list[Node] = []
    stack: list[Node] = []
    for event in sorted(events, key=lambda each: (each["ts"], -each["dur"])):
        start = float(event["ts"])
        node = Node(
            event["name"], event.get("cat", ""), start, start + float(event["dur"]), event.get("args", {})
        )
        # 1e-3 us: the rounding error of exported times.
        while stack and node.start >= stack[-1].end - 1e-3:
            stack.pop()
        (stack[-1].children if stack else roots).append(node)
        stack.append(node)
    return roots


def instants(trace: Event, name: str, start: float, end: float) -> Iterator[Event]:
    for event in trace["traceEvents"]:
        if event.get("ph") == "i" and event["name"] == name and start <= event["ts"] <= end:
            yield event


def flame_of(trace: Event) -> Flame:
    """Shows the pass with the median time: an interrupted pass would distort a mean."""
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
