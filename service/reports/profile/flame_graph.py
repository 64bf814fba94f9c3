# SPDX-License-Identifier: Apache-2.0
"""A flame graph as SVG, root on top. The caller gives the scale, so that two graphs can be compared."""

from __future__ import annotations

from fused_mlp.kernels.profile.counting import kind_of
from fused_mlp.kernels.profile.cpu_phases import CATEGORY
from fused_mlp.kernels.profile.results import Flame
from fused_mlp.service.reports.profile.wording import microseconds
from fused_mlp.service.reports.svg import Axis, drawing, line, rectangle, text
from fused_mlp.service.reports.units import seconds_text

_WIDTH, _ROW, _TOP = 1080.0, 21.0, 24.0
_CHARACTER = 6.3  # mean width of a letter, in pixels
_VISIBLE = 0.3  # narrower spans are left out
LEGEND = {
    "work": "computes",
    "phase": "phases of our kernel",
    "wrapper": "calls other operators",
    "view": "view or allocation: no work",
    "annotation": "around the operators",
}


def flame_graph(root: Flame, scale_us: float, title: str, alone: bool = False) -> str:
    """`scale_us`: the time that fills the whole width."""
    x = Axis(0, scale_us, 0, _WIDTH)
    parts = []
    for tick in x.ticks():
        if tick <= 0.97 * scale_us:  # a label further right would be cut off
            parts += [line(x(tick), _TOP - 6, x(tick), _TOP - 1, "axis")]
            parts += [text(x(tick) + 3, _TOP - 9, seconds_text(tick / 1e6) if tick else "0")]
    depth = _draw(root, 0.0, 0, x, parts)
    return drawing(_WIDTH, _TOP + _ROW * (depth + 1) + 2, "".join(parts), title, alone)


def _draw(node: Flame, start_us: float, depth: int, x: Axis, parts: list[str]) -> int:
    """Draws the node and its children. Returns the depth of the deepest one drawn."""
    left, width = x(start_us), x(node.us)
    if width < _VISIBLE:
        return depth
    y = _TOP + depth * _ROW
    times = "" if node.count == 1 else f", {node.count:g} times"
    tip = f"{node.name}: {microseconds(node.us)} us per forward{times}"
    parts.append(rectangle(left, y, width - 0.5, _ROW - 2, _kind(node), tip))
    label = node.name.removeprefix("aten::") + (f" x{node.count:g}" if node.count > 1 else "")
    room = int((width - 8) / _CHARACTER)
    if room >= 3:
        shown = label if len(label) <= room else f"{label[: room - 1]}…"
        parts.append(text(left + 4, y + _ROW - 7, shown, kind="ink"))
    deepest = depth
    for child in node.children:
        deepest = max(deepest, _draw(child, start_us, depth + 1, x, parts))
        start_us += child.us
    return deepest


def _kind(node: Flame) -> str:
    if node.category == CATEGORY:
        return "phase"
    if node.name == "fused_mlp::mlp":
        return "work"
    kind = kind_of(node.name)
    return "view" if kind == "allocation" else kind
