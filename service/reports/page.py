# SPDX-License-Identifier: Apache-2.0
"""A report as one HTML page: no script, no external resources, light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape

from fused_mlp.service.reports.style import style_sheet

_STYLE = """
main{max-width:1160px;margin:0 auto;padding:1.8rem 1rem 4rem}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .3rem;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:2.2rem 0 .5rem}
p,ul{margin:.4rem 0 .8rem;max-width:80ch}
.said{background:var(--card);border-left:3px solid var(--fused);border-radius:.3rem;padding:.5rem .9rem;
margin:.5rem 0;max-width:none}
.said.bad{border-color:var(--bad)}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));gap:0 1.8rem}
.pair>*{min-width:0}
.scroll{overflow-x:auto}
.few{width:auto}
.scroll>svg{min-width:40rem}
.map{max-width:50rem}
th,td{padding:.35rem .6rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600}
.left{text-align:left;white-space:normal}
tbody+tbody{border-top:2px solid var(--line)}
span.good{color:var(--good);font-weight:600}
span.bad{color:var(--bad);font-weight:600}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;color:var(--soft);font-size:.9rem}
dd{margin:0;overflow-wrap:anywhere}
details{border:1px solid var(--line);border-radius:.4rem;padding:.5rem .9rem;margin:.6rem 0}
summary{cursor:pointer;font-weight:600}
figure{margin:.9rem 0 0}
figcaption{color:var(--soft);font-size:.85rem}
@media(max-width:40rem){table{font-size:.82rem}th,td{padding:.3rem .25rem}
.many thead,.many td:empty{display:none}
.many tr{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));padding:.3rem 0;border-bottom:1px solid var(--line)}
.many td{border:0;text-align:left;padding:.15rem .25rem;white-space:normal;overflow-wrap:anywhere}
.many td::before{content:attr(data-title);display:block;color:var(--soft);font-size:.75rem}
.many :is(td:first-child,.left){grid-column:1/-1}
.many :is(td:first-child,.left)::before{display:inline;margin-right:.5em}}
"""


def page(title: str, body: str) -> str:
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(title)}</title><style>{style_sheet()}{_STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def said(sentence: str, bad: bool = False) -> str:
    return f"<p class='said{' bad' if bad else ''}'>{escape(sentence)}</p>"


def remark(markup: str) -> str:
    return f"<p class='soft small'>{markup}</p>"


def facts(described: Iterable[tuple[str, str]]) -> str:
    pairs = "".join(f"<dt>{escape(term)}</dt><dd>{escape(words)}</dd>" for term, words in described)
    return f"<dl>{pairs}</dl>"


def name(variant: str, words: str = "") -> str:
    """In the colour of a variant."""
    return f"<span class='name {escape(variant)}'>{escape(words or variant)}</span>"


def key(colours: Mapping[str, str]) -> str:
    """A legend: the meaning of each colour of the style."""
    entries = (
        f"<span class='{colour}' style='--own:var(--{colour})'>{escape(words)}</span>"
        for colour, words in colours.items()
    )
    return f"<div class='key'>{''.join(entries)}</div>"


def table(
    titles: Sequence[str], groups: Iterable[Iterable[Sequence[str]]], left: Collection[str] = ()
) -> str:
    """Titles and cells are markup. Groups of rows are set apart; `left` are the columns of words. On a phone a row of
    many columns becomes a block, with the title at each cell."""
    kind = "few" if len(titles) <= 5 else "many"
    classes = [" class='left'" if title in left else "" for title in titles]
    cells = [
        f'{c} data-title="{escape(title)}"' if kind == "many" else c
        for c, title in zip(classes, titles, strict=True)
    ]
    head = "".join(f"<th{c}>{title}</th>" for c, title in zip(classes, titles, strict=True))
    bodies = "".join(
        "<tbody>"
        + "".join(
            f"<tr>{''.join(f'<td{c}>{cell}</td>' for c, cell in zip(cells, row, strict=True))}</tr>"
            for row in group
        )
        + "</tbody>"
        for group in groups
    )
    return f"<div class='scroll'><table class='{kind}'><thead><tr>{head}</tr></thead>{bodies}</table></div>"
