# SPDX-License-Identifier: Apache-2.0
"""The picture of one Predict in docs/internals/architecture.md, for light and dark pages. `python -m
docs.site.predict_picture` writes docs/img/predict-light.svg and predict-dark.svg; the numbers are those of the walk."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "img"
WIDTH, HEIGHT = 1000, 500
BOX_WIDTH, BOX_HEIGHT, STEP = 104, 62, 120
LOOP_Y, WORKER_Y = 146, 306


@dataclass(frozen=True)
class Colours:
    ink: str
    quiet: str
    lane: str
    box: str
    line: str
    accent: str
    on_accent: str


COLOURS = {
    "predict-light.svg": Colours("#1b2b2e", "#5b6e72", "#f1f5f6", "#ffffff", "#8aa0a5", "#14707c", "#ffffff"),
    "predict-dark.svg": Colours("#e6eef0", "#a9bcc1", "#262d36", "#323b45", "#7b9298", "#5fc4cf", "#10272a"),
}

# Column, number in the walk, title, what it says below.
LOOP = [
    (0, 1, "read", "sockets, HTTP/2"),
    (1, 2, "decode", "fields, views"),
    (2, 3, "choose", "version, variant"),
    (3, 4, "check", "shape and bytes"),
    (4, 5, "submit", "the whole round"),
    (5, 6, "run", "short batches"),
    (6, 7, "deliver", "status, counters"),
    (7, 8, "write", "sockets"),
]
WORKER = [
    (4, 5, "queue", "fair by time"),
    (5, 6, "run", "long, or Python"),
    (6, 7, "post", "wakes the loop"),
]


def draw(colours: Colours) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">',
        "<title>One Predict: what each thread does, from the socket to the answer</title>",
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0 8 4 0 8Z" fill="{colours.line}"/></marker></defs>',
        _lane(colours, 12, 62, "Client", "any gRPC or REST client"),
        _lane(
            colours,
            92,
            142,
            "Event loop",
            "C++, one per core: short work from socket to socket on one thread",
            x=92,
        ),
        _lane(colours, 252, 142, "Worker", "C++, one per core: longer work"),
        _lane(colours, 412, 76, "Python", "per load, scrape or signal"),
    ]
    parts += [_box(colours, LOOP_Y, box) for box in LOOP]
    parts += [_box(colours, WORKER_Y, box) for box in WORKER]
    middle = LOOP_Y + BOX_HEIGHT / 2
    parts += [_arrow(colours, _right(column), middle, _left(column + 1), middle) for column in range(7)]
    low = WORKER_Y + BOX_HEIGHT / 2
    parts += [_arrow(colours, _right(column), low, _left(column + 1), low) for column in (4, 5)]
    parts += [
        _arrow(colours, _centre(0), 74, _centre(0), LOOP_Y),
        _arrow(colours, _centre(7), LOOP_Y, _centre(7), 74),
        _arrow(colours, _centre(4), LOOP_Y + BOX_HEIGHT, _centre(4), WORKER_Y),
        _arrow(colours, _centre(6), WORKER_Y, _centre(6), LOOP_Y + BOX_HEIGHT),
        _text(_centre(0) + 10, 66, "Predict(model, rows)", colours.ink, 13),
        _text(_centre(7) - 10, 66, "outputs", colours.ink, 13, anchor="end"),
    ]
    for column, label in ((2, "publishes routes"), (5, "builds kernels, reads counters")):
        top = LOOP_Y + BOX_HEIGHT if column == 2 else WORKER_Y + BOX_HEIGHT
        parts += [
            _arrow(colours, _centre(column), 448, _centre(column), top, dashed=True),
            _text(_centre(column), 468, label, colours.ink, 13, anchor="middle"),
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _left(column: int) -> float:
    return 28 + column * STEP


def _right(column: int) -> float:
    return _left(column) + BOX_WIDTH


def _centre(column: int) -> float:
    return _left(column) + BOX_WIDTH / 2


def _lane(colours: Colours, y: int, height: int, title: str, note: str, *, x: int = 28) -> str:
    return (
        f'<rect x="12" y="{y}" width="{WIDTH - 24}" height="{height}" rx="10" fill="{colours.lane}"/>'
        + _text(x, y + 24, title, colours.accent, 15, bold=True)
        + _text(x + 9 * len(title) + 12, y + 24, note, colours.quiet, 13)
    )


def _box(colours: Colours, y: int, box: tuple[int, int, str, str]) -> str:
    column, number, title, note = box
    x = _left(column)
    return (
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8" fill="{colours.box}" '
        f'stroke="{colours.line}"/>'
        f'<circle cx="{x + 14}" cy="{y + 22}" r="9" fill="{colours.accent}"/>'
        + _text(x + 14, y + 26, str(number), colours.on_accent, 12, bold=True, anchor="middle")
        + _text(x + 28, y + 27, title, colours.ink, 13, bold=True)
        + _text(x + BOX_WIDTH / 2, y + 49, note, colours.quiet, 11.5, anchor="middle")
    )


def _arrow(colours: Colours, x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="4 4"' if dashed else ""
    return (
        f'<path d="M{x1} {y1} {x2} {y2}" stroke="{colours.line}" stroke-width="1.6" fill="none" '
        f'marker-end="url(#tip)"{dashes}/>'
    )


def _text(
    x: float, y: float, text: str, colour: str, size: float, *, bold: bool = False, anchor: str = "start"
) -> str:
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{x}" y="{y}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}" font-size="{size}"{weight}>{escape(text)}</text>'


if __name__ == "__main__":
    for name, colours in COLOURS.items():
        (IMAGES / name).write_text(draw(colours))
