# SPDX-License-Identifier: Apache-2.0
"""The look of every report: fonts, light and dark colours, one colour per variant. Shared by `fused-mlp ab`,
`fused-mlp profile`, the live page, the benchmark plots and the Grafana dashboard."""

from __future__ import annotations

from typing import NamedTuple


class Colour(NamedTuple):
    light: str  # on a light page
    dark: str  # on a dark page
    any: str = ""  # where the background is unknown: terminals, Grafana


# Blue, orange and purple differ for every kind of colour vision. The eager layers of a profile are the unfused variant.
_UNFUSED = Colour("#b45309", "#f0a34a", "#e0862c")
VARIANT_COLOURS = {
    "fused": Colour("#0b62b5", "#6cb6ff", "#3274d9"),
    "unfused": _UNFUSED,
    "eager": _UNFUSED,
    "compile": Colour("#8d2f83", "#e3a0dc", "#b65aac"),
}
COLOURS = VARIANT_COLOURS | {
    "ground": Colour("#f4f6f8", "#0e1115"),  # behind cards
    "paper": Colour("#ffffff", "#14171c"),
    "card": Colour("#f5f7f9", "#1c2128"),
    "ink": Colour("#1b1f24", "#e8ebee"),
    "soft": Colour("#57606a", "#9aa5b1"),
    "line": Colour("#dde2e8", "#2f3741"),
    "good": Colour("#1a7f37", "#57c26f"),
    "bad": Colour("#b3261e", "#ff8a80"),
    # Kinds of spans in a flame graph, pale enough for text on them.
    "work": Colour("#f2b68c", "#a85b2c"),
    "phase": Colour("#9cc8f2", "#23598c"),
    "wrapper": Colour("#c9d3e3", "#46536a"),
    "view": Colour("#e3d9f5", "#5b4a80"),
    "annotation": Colour("#e8ebef", "#3a414d"),
}
FONT = "ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,sans-serif"

# `--own` is the colour of the variant that an element or its parent names as its class. Unfused is also dashed or
# hollow: readable in black and white.
_RULES = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 FONT}
.soft{color:var(--soft)}
.small{font-size:.85rem}
.name{color:var(--own);fill:var(--own);font-weight:600}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
code{font:.9em ui-monospace,monospace;background:var(--card);border-radius:.3rem;padding:.1em .35em;
overflow-wrap:anywhere}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font:12px FONT;font-variant-numeric:tabular-nums;pointer-events:none}
svg .ink{fill:var(--ink)}
.grid{stroke:var(--line)}
.axis{stroke:var(--soft)}
.unfused{--pale:color-mix(in srgb,var(--own) 20%,var(--paper))}
.neutral{--own:var(--ink)}
.line{fill:none;stroke:var(--own);stroke-width:2;stroke-linejoin:round}
.dot,.bar{fill:var(--own)}
:is(.unfused,.eager).line{stroke-dasharray:6 3}
:is(.unfused,.eager).dot{fill:var(--paper);stroke:var(--own);stroke-width:1.5}
.unfused.bar{fill:var(--pale);stroke:var(--own);stroke-width:1.2}
.key{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.8rem;color:var(--soft)}
.key span::before{content:"";display:inline-block;width:1.1em;height:.75em;margin-right:.4em;border-radius:2px;
background:var(--own);border:1.5px solid var(--own)}
.key .unfused::before{background:var(--pale)}
"""


def style_sheet() -> str:
    """Colours as CSS variables, a class for each variant, and the rules that all pages and drawings share."""
    light, dark = (
        "".join(f"--{name}:{getattr(colour, theme)};" for name, colour in COLOURS.items())
        for theme in ("light", "dark")
    )
    classes = "".join(f".{name}{{--own:var(--{name})}}" for name in VARIANT_COLOURS)
    themes = f":root{{color-scheme:light dark;{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f"{themes}{classes}{_RULES.replace('FONT', FONT)}"
