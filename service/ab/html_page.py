"""A report as one HTML page: no script, nothing from elsewhere, light and dark."""

from __future__ import annotations

from html import escape

from fused_mlp.service.ab.plots import distribution_plot, ratio_plot, timeline_plot
from fused_mlp.service.ab.report import Report
from fused_mlp.service.ab.wording import difference_text, ratio_text, value_text

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5b6470;--line:#d9dee4;--paper:#fff;--card:#f6f8fa;
--fused:#0b62b5;--unfused:#b45309;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e8ebee;--soft:#9aa5b1;--line:#333b45;--paper:#12161b;--card:#1a2027;
--fused:#6cb6ff;--unfused:#f0a34a;--bad:#ff8a80}}
*{box-sizing:border-box}body{margin:0 auto;max-width:60rem;padding:1.5rem 1rem 3rem;background:var(--paper);
color:var(--ink);font:16px/1.5 system-ui,sans-serif}h1{font-size:1.35rem;margin:0 0 .25rem}h2{font-size:1rem;
margin:2rem 0 .5rem}.verdict{font-size:1.15rem;background:var(--card);border-left:4px solid var(--fused);
padding:.75rem 1rem;border-radius:.35rem}.verdict.bad{border-color:var(--bad)}.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{padding:.4rem .6rem;
border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}th:first-child,td:first-child{text-align:left}
thead th{font-weight:600;color:var(--soft)}.fused{color:var(--fused)}.unfused{color:var(--unfused)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;color:var(--soft);font-size:.9rem}dd{margin:0}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font:12px system-ui,sans-serif}
.grid{stroke:var(--line)}.curve{fill:none;stroke-width:2}.curve.fused{stroke:var(--fused)}
.curve.unfused{stroke:var(--unfused);stroke-dasharray:6 3}.dot.fused{fill:var(--fused)}.dot.unfused{fill:none;
stroke:var(--unfused);stroke-width:1.5}.bar{stroke:var(--ink);stroke-width:2}.mean{fill:var(--ink)}
"""


def html_page(report: Report) -> str:
    rows = "\n".join(
        f"<tr><td>{escape(row.name)}</td><td>{value_text(row.fused, row.unit)}</td>"
        f"<td>{value_text(row.unfused, row.unit)}</td><td>{ratio_text(row.ratio)}</td></tr>"
        for row in report.rows
    )
    facts = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in report.facts.items())
    notes = "".join(f"<dt>note</dt><dd>{escape(note)}</dd>" for note in report.notes)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>fused against unfused: {escape(report.title)}</title><style>{_STYLE}</style></head><body>
<h1><span class="fused">fused</span> against <span class="unfused">unfused</span>: {escape(report.title)}</h1>
<p class="verdict{"" if report.valid else " bad"}">{escape(report.verdict)}</p>
<div class="scroll"><table><thead><tr><th></th><th class="fused">fused</th><th class="unfused">unfused</th>
<th>unfused / fused (95 % interval)</th></tr></thead><tbody>
{rows}
</tbody></table></div>
<p>{escape(difference_text(report.difference))}</p>
<h2>Ratio, with its 95 % interval</h2>{ratio_plot(report)}
<h2>Latency: share of requests answered within a time</h2>{distribution_plot(report)}
<h2>Median latency over the run</h2>{timeline_plot(report)}
<h2>How it was measured</h2><dl>{facts}{notes}</dl>
</body></html>
"""
