"""Drawings as text: the few SVG elements that the plots are made of. Colours are CSS variables of the page, with
values of their own for a drawing that stands alone."""

from __future__ import annotations

from html import escape

# name -> (light, dark)
COLOURS = {
    "page": ("#ffffff", "#14171c"),
    "panel": ("#f6f7f9", "#1c2027"),
    "text": ("#1c2430", "#e6e9ee"),
    "muted": ("#5d6878", "#98a2b3"),
    "line": ("#dde1e7", "#323843"),
    "eager": ("#64748b", "#94a3b8"),
    "compile": ("#b45309", "#f0a63c"),
    "fused": ("#0d8a63", "#34d399"),
    "work": ("#f2b68c", "#a85b2c"),
    "native": ("#8fd3b6", "#1f7a58"),
    "wrapper": ("#c9d3e3", "#46536a"),
    "view": ("#e3d9f5", "#5b4a80"),
    "annotation": ("#e8ebef", "#3a414d"),
    "good": ("#0d8a63", "#34d399"),
    "bad": ("#c0392b", "#ff7a6b"),
}
FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def style_sheet(selector: str = ":root") -> str:
    light = "".join(f"--{name}:{value[0]};" for name, value in COLOURS.items())
    dark = "".join(f"--{name}:{value[1]};" for name, value in COLOURS.items())
    return f"{selector}{{{light}}}@media(prefers-color-scheme:dark){{{selector}{{{dark}}}}}"


def drawing(width: float, height: float, body: str, title: str, alone: bool = False) -> str:
    """`alone`: a file of its own, which brings its colours and background."""
    head = ""
    if alone:
        head = f"<style>{style_sheet('svg')}</style><rect width='100%' height='100%' fill='var(--page)'/>"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' role='img' "
        f"aria-label='{escape(title, quote=True)}' font-family=\"{FONT}\" font-size='12'>{head}{body}</svg>"
    )


def rectangle(  # noqa: PLR0917 - x, y, width, height are one thing
    x: float, y: float, width: float, height: float, fill: str, tip: str = "", radius: float = 2
) -> str:
    inside = f"<title>{escape(tip)}</title>" if tip else ""
    return (
        f"<rect x='{x:.2f}' y='{y:.2f}' width='{max(width, 0.3):.2f}' height='{height:.2f}' rx='{radius:g}' "
        f"fill='{fill}'>{inside}</rect>"
    )


def text(
    x: float, y: float, words: str, *, anchor: str = "start", fill: str = "var(--text)", extra: str = ""
) -> str:
    return (
        f"<text x='{x:.2f}' y='{y:.2f}' text-anchor='{anchor}' fill='{fill}' {extra}>{escape(words)}</text>"
    )


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = "var(--line)") -> str:
    return f"<line x1='{x1:.2f}' y1='{y1:.2f}' x2='{x2:.2f}' y2='{y2:.2f}' stroke='{stroke}'/>"
