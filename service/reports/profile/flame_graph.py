"""A flame graph as SVG, root on top, drawn to the scale it is given, so that two can be compared."""

from __future__ import annotations

from fused_mlp.kernels.profile.counting import kind_of
from fused_mlp.kernels.profile.results import Flame
from fused_mlp.service.reports.profile.wording import microseconds
from fused_mlp.service.reports.svg import drawing, line, rectangle, text

WIDTH = 1080.0
_ROW = 21.0
_AXIS = 24.0
_CHARACTER = 6.3  # of the width of a letter, in pixels
_NATIVE = ("layer ", "gemm", "epilogue", "finish", "pack ")
LEGEND = {
    "work": "computes",
    "native": "phases of our kernel",
    "wrapper": "calls others",
    "view": "view or allocation: no work",
    "annotation": "around the operators",
}


def flame_graph(root: Flame, scale_us: float, title: str, alone: bool = False) -> str:
    """`scale_us`: the time that fills the whole width."""
    parts = [_axis(scale_us)]
    depth = _draw(root, 0.0, 0, WIDTH / scale_us, parts)
    return drawing(WIDTH, _AXIS + _ROW * (depth + 1) + 2, "".join(parts), title, alone)


def _axis(scale_us: float) -> str:
    step = _round_step(scale_us / 6)
    parts = []
    tick = 0.0
    while tick <= scale_us * 0.97:
        x = tick / scale_us * WIDTH
        parts.append(line(x, _AXIS - 6, x, _AXIS - 1, "var(--muted)"))
        label = f"{tick:g} us" if tick < 10_000 else f"{tick / 1000:g} ms"
        parts.append(text(x + 3, _AXIS - 9, label, fill="var(--muted)", extra="font-size='11'"))
        tick += step
    return "".join(parts)


def _round_step(least: float) -> float:
    power = 1.0
    while power * 10 <= least:
        power *= 10
    while power > least:
        power /= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def _draw(node: Flame, start_us: float, depth: int, pixels_per_us: float, parts: list[str]) -> int:
    """Draws the node and what is inside it; the depth of the deepest drawn."""
    x, width = start_us * pixels_per_us, node.us * pixels_per_us
    if width < 0.3:  # nobody could see it, or point at it
        return depth
    y = _AXIS + depth * _ROW
    times = "" if node.count == 1 else f", {node.count:g} times"
    tip = f"{node.name}: {microseconds(node.us)} us per forward{times}"
    parts.append(rectangle(x, y, max(width - 0.5, 0.3), _ROW - 2, f"var(--{_kind(node.name)})", tip))
    label = node.name.removeprefix("aten::")
    if node.count > 1:
        label += f" x{node.count:g}"
    room = int((width - 8) / _CHARACTER)
    if room >= 3:
        shown = label if len(label) <= room else f"{label[: room - 1]}…"
        parts.append(text(x + 4, y + _ROW - 7, shown, extra="pointer-events='none'"))
    deepest = depth
    at = start_us
    for child in node.children:
        deepest = max(deepest, _draw(child, at, depth + 1, pixels_per_us, parts))
        at += child.us
    return deepest


def _kind(name: str) -> str:
    if name.startswith(_NATIVE):
        return "native"
    if name == "fused_mlp::mlp":
        return "work"
    kind = kind_of(name)
    return "view" if kind == "allocation" else kind
