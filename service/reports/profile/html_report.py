"""The page: one HTML file with tables and drawings in it, and nothing from outside. Light or dark as the reader's
system is; made for the width of a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fused_mlp.kernels.profile import Difference, Point, Profile, Sweep
from fused_mlp.service.reports.profile import wording
from fused_mlp.service.reports.profile.flame_graph import LEGEND, flame_graph
from fused_mlp.service.reports.profile.plots import heat_map, heat_map_width, share_plot, time_plot
from fused_mlp.service.reports.svg import FONT, style_sheet

_STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.55 FONT}
main{max-width:1160px;margin:0 auto;padding:32px 28px 64px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:18px;margin:40px 0 10px}
p,ul{margin:6px 0 12px;max-width:78ch}
.muted{color:var(--muted)}
.small{font-size:13px}
.advice{list-style:none;padding:0;display:grid;gap:8px;max-width:none;margin:20px 0 0}
.advice li{background:var(--panel);border-left:3px solid var(--fused);border-radius:4px;padding:8px 14px}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:28px}
.pair>*{min-width:0}
@media(max-width:900px){.pair{grid-template-columns:1fr}}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th{color:var(--muted);font-weight:600}
td.l,th.l{text-align:left}
td.wrap{white-space:normal;min-width:170px}
tr.last td{border-bottom:2px solid var(--line)}
td.eager{color:var(--eager);font-weight:600}td.compile{color:var(--compile);font-weight:600}
td.fused{color:var(--fused);font-weight:600}
.right{color:var(--good);font-weight:600}.wrong{color:var(--bad);font-weight:600}
.failed{border-left:3px solid var(--bad);background:var(--panel);padding:8px 14px;border-radius:4px}
details{border:1px solid var(--line);border-radius:6px;padding:8px 14px;margin:10px 0}
summary{cursor:pointer;font-weight:600}
figure{margin:14px 0 0}
figcaption{color:var(--muted);font-size:13px;margin-bottom:2px}
svg{display:block;width:100%;height:auto}
.legend{display:flex;flex-wrap:wrap;gap:6px 18px;font-size:13px;color:var(--muted)}
.legend i{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:6px;vertical-align:-1px}
code{font-size:13px;background:var(--panel);padding:2px 5px;border-radius:3px;overflow-wrap:anywhere}
""".replace("FONT", FONT)


def html_report(
    profile: Profile, command: str, differences: Sequence[Difference] = (), sweep: Sweep | None = None
) -> str:
    sections = [
        _head(profile),
        _plots(profile),
        _times(profile),
        _operators(profile),
        _expectations(differences),
        _flames(profile),
        _sweep(sweep),
        _method(profile, command),
    ]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        "<meta name='color-scheme' content='light dark'><link rel='icon' href='data:,'>"
        f"<title>{escape(profile.model)} · fused-mlp profile</title><style>{style_sheet()}{_STYLE}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _head(profile: Profile) -> str:
    advice = "".join(f"<li>{escape(_sentence(each))}</li>" for each in profile.advice)
    failures = "".join(
        f"<p class='failed'>{escape(name)} was not profiled: {escape(reason)}</p>"
        for name, reason in profile.failures.items()
    )
    return (
        f"<h1>{escape(profile.model)}</h1>"
        f"<p class='muted'>{profile.parameters:,} parameters · {escape(wording.setting(profile))}<br>"
        f"{escape(_sentence(wording.limits(profile)))}</p>"
        f"<ul class='advice'>{advice}</ul>{failures}"
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _plots(profile: Profile) -> str:
    return (
        "<div class='pair'><section><h2>Time per forward pass</h2>" + time_plot(profile) + "</section>"
        "<section><h2>Where it goes</h2>"
        + share_plot(profile)
        + "<p class='muted small'>Solid: the arithmetic at the "
        "limit of the machine. Lighter: calling the layers. Faint: the rest. Each batch size has its own scale.</p>"
        "</section></div>"
    )


def _times(profile: Profile) -> str:
    titles = (
        "us / forward",
        "kernel alone",
        "speed-up",
        "CPU us",
        "device us",
        "call us",
        "overhead",
        "of the limit",
    )
    rows = [
        (
            point,
            wording.microseconds(point.time_us),
            wording.microseconds(point.kernel_us),
            f"{point.speedup:.2f}x",
            wording.microseconds(point.cpu_us),
            wording.microseconds(point.counts.device_us),
            wording.microseconds(point.regime.overhead_us),
            f"{point.overhead_share:.0%}",
            f"{point.regime.name}-bound, {point.regime.reached:.0%}"
            if point.regime.explains
            else f"none: {point.regime.name} explains {point.regime.reached:.0%}",
        )
        for point in profile.points
    ]
    return (
        f"<h2>Time</h2>{_by_batch(profile, titles, rows)}"
        "<p class='muted small'>Best of many calls, without the profiler. <em>call us</em> is what the same layers "
        "take when they are 16 wide, for one or two rows: calling, and hardly any arithmetic. The largest of that, of "
        "reading the weights and of the arithmetic bounds a forward pass. <em>kernel alone</em> is the fused kernel "
        "called with an array, without the torch module around it: what a request to the service pays.</p>"
    )


def _operators(profile: Profile) -> str:
    titles = ("operators", "no work", "launches", "allocated", "moved", "launched")
    rows = [
        (
            point,
            str(point.counts.dispatched),
            str(point.counts.bookkeeping),
            str(point.counts.launched),
            wording.size(point.counts.bytes_allocated),
            wording.size(point.counts.bytes_moved, point.counts.bytes_moved_known),
            wording.counted(point.counts.launches),
        )
        for point in profile.points
    ]
    return (
        f"<h2>Operators</h2>{_by_batch(profile, titles, rows)}"
        "<p class='muted small'>Dispatched per forward pass, nested ones too; <em>no work</em> are views, wrappers and "
        "allocations. A launch is an outermost operator that computes, on a GPU a kernel.</p>"
    )


def _by_batch(profile: Profile, titles: Sequence[str], rows: Sequence[tuple[Point | str, ...]]) -> str:
    left = {"launched", "of the limit"}
    head = "".join(f"<th class='{'l' if title in left else ''}'>{title}</th>" for title in titles)
    body = []
    for batch in profile.batches:
        group = [row for row in rows if isinstance(row[0], Point) and row[0].batch == batch]
        for row in group:
            point = row[0]
            assert isinstance(point, Point)
            cells = "".join(
                f"<td class='{'l wrap' if title in left else ''}'>{escape(str(cell))}</td>"
                for title, cell in zip(titles, row[1:], strict=True)
            )
            first = str(batch) if row is group[0] else ""
            last = " class='last'" if row is group[-1] else ""
            body.append(
                f"<tr{last}><td>{first}</td><td class='l {point.variant}'>{point.variant}</td>{cells}</tr>"
            )
    return (
        f"<div class='scroll'><table><thead><tr><th>batch</th><th class='l'>variant</th>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _expectations(differences: Sequence[Difference]) -> str:
    if not differences:
        return ""
    rows = "".join(
        f"<tr><td>{each.batch}</td><td class='l'>{each.variant} {each.what}</td><td>{each.expected}</td>"
        f"<td>{each.found}</td><td class='l {'right' if each.right else 'wrong'}'>"
        f"{'as guessed' if each.right else 'differs'}</td></tr>"
        for each in differences
    )
    return (
        "<h2>Guessed first, then looked</h2><table style='width:auto'><thead><tr><th>batch</th><th class='l'>guess</th>"
        f"<th>expected</th><th>found</th><th></th></tr></thead><tbody>{rows}</tbody></table>"
    )


def _flames(profile: Profile) -> str:
    legend = "".join(
        f"<span><i style='background:var(--{kind})'></i>{words}</span>" for kind, words in LEGEND.items()
    )
    groups = []
    for batch in profile.batches:
        flames = {name: profile.flames.get(f"{name}/{batch}") for name in ("eager", "compile", "fused")}
        present = {name: flame for name, flame in flames.items() if flame is not None}
        if not present:
            continue
        scale = max(flame.us for flame in present.values())
        figures = "".join(
            f"<figure><figcaption>{wording.VARIANT_TITLES[name]}</figcaption>"
            f"{flame_graph(flame, scale, f'{name} at batch {batch}')}</figure>"
            for name, flame in present.items()
        )
        opened = " open" if batch == profile.batches[0] else ""
        groups.append(f"<details{opened}><summary>batch {batch}</summary>{figures}</details>")
    if not groups:
        return ""
    return (
        f"<h2>Flame graphs</h2><div class='legend'>{legend}</div>{''.join(groups)}"
        "<p class='muted small'>One scale per batch size. Times are those under the profiler, which slows every "
        "operator down; the tables have the times without it. Inside our kernel, gemm includes bias and relu, which "
        "are applied in registers; gemm and epilogue alternate tile by tile and are shown summed.</p>"
    )


def _sweep(sweep: Sweep | None) -> str:
    if sweep is None or not sweep.cells:
        return ""
    return (
        "<h2>Where fusion pays</h2><p class='muted'>Speed-up of fused over eager: "
        f"{escape(wording.sweep_title(sweep))}.</p>"
        f"<div style='max-width:{heat_map_width(sweep):g}px'>{heat_map(sweep)}</div>"
        + (f"<p class='muted small'>{wording.BUSY}</p>" if any(cell.busy for cell in sweep.cells) else "")
    )


def _method(profile: Profile, command: str) -> str:
    traces = "".join(f"<li><code>{escape(path)}</code></li>" for path in profile.traces.values())
    listed = f"<p>Traces, for ui.perfetto.dev or chrome://tracing:</p><ul>{traces}</ul>" if traces else ""
    return (
        f"<h2>How this was made</h2><p><code>{escape(command)}</code></p>"
        f"<p class='muted small'>{escape(_sentence(profile.kernel or 'no fused kernel'))}<br>"
        f"{escape(', '.join(f'{key} {value}' for key, value in profile.machine.items()))}.</p>{listed}"
    )
