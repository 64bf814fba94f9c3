# SPDX-License-Identifier: Apache-2.0
"""Draws a program as lines of text: one line a step, values as lanes that fork where a value is read twice and join
where two become one, like `git log --graph`. Repeated blocks are drawn once. Does not know the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from fused_mlp.service.client import StepInfo, VersionInfo

_INPUT = "input"
_FUNCTIONS = ("elementwise", "softmax", "log_softmax")
_WORDS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "maximum": "max", "minimum": "min"}


@dataclass(frozen=True)
class _Node:
    """A line of the drawing: a step and the functions right after it. `reads` and `makes` are names of values; `times`
    and `place` describe a repeated block."""

    name: str
    text: str
    reads: tuple[str, ...]
    makes: str
    width: int
    outputs: tuple[str, ...] = ()
    times: int = 1
    place: str = ""  # in its block: first, middle, last, only


def draw_program(version: VersionInfo) -> list[str]:
    nodes = _fold(_nodes(version))
    lines = _draw(_Node(_INPUT, _shape(version), (), _INPUT, version.in_features), nodes)
    return _align(lines)


def _shape(version: VersionInfo) -> str:
    if version.inputs:
        return ", ".join(each.name for each in version.inputs)
    return f"shape {version.input_shape}" if len(version.input_shape) > 1 else ""


# ---- 1. Steps become nodes: a function that only follows a step is written beside it. ----


def _nodes(version: VersionInfo) -> list[_Node]:
    shown = {output.value: output.name for output in version.outputs}
    outputs: dict[str, list[str]] = {}
    for output in version.outputs:
        outputs.setdefault(output.value, []).append(
            f"{output.name} (rows,)" if output.squeeze else output.name
        )
    readers: dict[str, int] = {}
    for step in version.steps:
        for source in step.inputs:
            readers[source] = readers.get(source, 0) + 1
    nodes: list[_Node] = []
    for step in version.steps:
        heads = tuple(outputs.get(step.name, ()))
        last = nodes[-1] if nodes else None
        if (
            last
            and step.op in _FUNCTIONS
            and step.inputs == (last.makes,)
            and readers[last.makes] == 1
            and last.makes not in shown
        ):
            text = f"{last.text}, {step.detail or step.op}"
            nodes[-1] = replace(last, text=text, makes=step.name, outputs=heads)
        else:
            nodes.append(_Node(step.name, _text(step), step.inputs, step.name, step.width, heads))
    return nodes


def _text(step: StepInfo) -> str:
    if step.op in _WORDS:
        return _WORDS[step.op]
    if step.op == "elementwise":
        return step.detail
    if step.op == "norm":
        kind, _, rest = step.detail.partition(", ")
        return f"{kind} norm, {rest}"
    text = f"{step.op} {step.detail}".strip()
    return f"{text} of {step.weights}" if step.weights else text


# ---- 2. Repeated blocks are drawn once. ----


def _fold(nodes: Sequence[_Node]) -> list[_Node]:
    """Finds repeated blocks. A block repeats when the same steps read the same values, counted back from each step."""
    index = {node.makes: at for at, node in enumerate(nodes)}
    signatures = [
        (node.text, node.width, tuple(at - index.get(read, -1) for read in node.reads))
        for at, node in enumerate(nodes)
    ]
    folded: list[_Node] = []
    drawn: dict[str, str] = {}  # the values of later repetitions -> those of the drawn one
    at = 0
    while at < len(nodes):
        times, size = _repetition(signatures, nodes, at)
        for place in range(size):
            copies = [nodes[at + copy * size + place] for copy in range(times)]
            drawn |= {copy.makes: copies[0].makes for copy in copies}
            first = replace(copies[0], reads=tuple(drawn.get(read, read) for read in copies[0].reads))
            if times > 1:
                where = "only" if size == 1 else {0: "first", size - 1: "last"}.get(place, "middle")
                first = replace(
                    first, name=_common_name(copies), times=times, place=where, outputs=copies[-1].outputs
                )
            folded.append(first)
        at += times * size
    return folded


def _repetition(signatures: Sequence[object], nodes: Sequence[_Node], at: int) -> tuple[int, int]:
    """Returns how often a block repeats from here on and its number of nodes: the repetition that covers the most
    nodes."""
    best = (1, 1)
    for size in range(1, (len(nodes) - at) // 2 + 1):
        times = 1
        while signatures[at + times * size : at + (times + 1) * size] == signatures[at : at + size]:
            times += 1
        while times > 1 and not _closed(nodes, at, times, size):
            times -= 1
        if times > 1 and times * size > best[0] * best[1]:
            best = (times, size)
    return best


def _closed(nodes: Sequence[_Node], at: int, times: int, size: int) -> bool:
    """Whether only the last value of the block's last repetition is read after the block or is an output."""
    block = nodes[at : at + times * size - 1]
    inside = {node.makes for node in block}
    after = nodes[at + times * size :]
    return not any(node.outputs for node in block) and not any(
        read in inside for node in after for read in node.reads
    )


def _common_name(copies: Sequence[_Node]) -> str:
    """`blocks.0.fc1` to `blocks.2.fc1` are `blocks.0-2.fc1`."""
    first, last = (re.split(r"(\d+)", copy.name) for copy in (copies[0], copies[-1]))
    if len(first) != len(last):
        return f"{copies[0].name}, ..."
    return "".join(a if a == b else f"{a}-{b}" for a, b in zip(first, last, strict=True))


# ---- 3. Nodes become lines: a lane for each value that is still read. ----


@dataclass
class _Lanes:
    """The value in each column; None where the column is free."""

    held: list[str | None] = field(default_factory=list)

    def free(self, beyond: int) -> int:
        """A free column to the right of another."""
        for column in range(beyond + 1, len(self.held)):
            if self.held[column] is None:
                return column
        self.held.append(None)
        return len(self.held) - 1

    def trim(self) -> None:
        while self.held and self.held[-1] is None:
            self.held.pop()

    def marked(self, column: int, mark: str) -> str:
        marks = ["│" if value else " " for value in self.held]
        marks[column] = mark
        return " ".join(marks).rstrip()

    def joined(self, source: int, target: int, source_goes_on: bool, target_is_new: bool) -> str:
        """A line from one column to another."""
        left, right = min(source, target), max(source, target)
        text = ""
        for column, value in enumerate(self.held):
            if column == source:
                mark = (
                    ("├" if source < target else "┤") if source_goes_on else ("╰" if source < target else "╯")
                )
            elif column == target:
                mark = (
                    ("╮" if source < target else "╭") if target_is_new else ("┤" if source < target else "├")
                )
            elif left < column < right:
                mark = "┼" if value else "─"
            else:
                mark = "│" if value else " "
            text += mark + ("─" if left <= column < right else " ")
        return text.rstrip()


def _draw(start: _Node, nodes: Sequence[_Node]) -> Iterator[tuple[str, _Node | None]]:
    left: dict[str, int] = {}  # how many reads of a value are left
    for node in nodes:
        for read in set(node.reads):
            left[read] = left.get(read, 0) + 1
    lanes = _Lanes([start.makes])
    yield "●", start
    for node in nodes:
        sources = list(dict.fromkeys(node.reads))
        for source in sources:
            left[source] -= 1
        columns = {source: lanes.held.index(source) for source in sources}
        ending = [columns[source] for source in sources if not left[source]]
        new = not ending
        target = lanes.free(max(columns.values())) if new else min(ending)
        for source, column in sorted(columns.items(), key=lambda item: -item[1]):
            if column != target:
                yield lanes.joined(column, target, bool(left[source]), new), None
                new = False
                if not left[source]:
                    lanes.held[column] = None
            lanes.held[target] = lanes.held[target] or node.makes
        lanes.held[target] = node.makes
        lanes.trim()
        yield lanes.marked(target, "●"), node
        if not left.get(node.makes):
            lanes.held[target] = None
            lanes.trim()


def _align(lines: Iterator[tuple[str, _Node | None]]) -> list[str]:
    drawn = list(lines)
    shown = [node for _, node in drawn if node]
    lane_width = max(len(lanes) for lanes, _ in drawn) + 2
    name_width = max(len(node.name) for node in shown) + 2
    text_width = max(len(node.text) for node in shown) + 2
    width_width = max(len(str(node.width)) for node in shown)
    brackets = {"first": "┐", "middle": "│", "last": "┘", "only": "]"}
    result, inside = [], False
    for lanes, node in drawn:
        if node is None:
            gap = lane_width + name_width + text_width + width_width + 1 - len(lanes)
            result.append(lanes + (" " * gap + "│" if inside else ""))
            continue
        line = f"{lanes:<{lane_width}}{node.name:<{name_width}}{node.text:<{text_width}}{node.width:>{width_width}}"
        if node.place:
            line += f" {brackets[node.place]}"
        if node.place in ("last", "only"):
            line += f" {node.times} x"
        inside = node.place in ("first", "middle")
        if node.outputs:
            line += f"  => {', '.join(node.outputs)}"
        result.append(line)
    return result
