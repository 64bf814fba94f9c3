# SPDX-License-Identifier: Apache-2.0
"""A profile as one HTML page, with all its tables and drawings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from fused_mlp.kernels.profile import PROFILED, Difference, Point, Profile, Sweep
from fused_mlp.service.ab.report import not_valid
from fused_mlp.service.reports.page import facts, key, name, page, remark, said, section, table
from fused_mlp.service.reports.profile import wording
from fused_mlp.service.reports.profile.flame_graph import LEGEND, flame_graph
from fused_mlp.service.reports.profile.plots import heat_map, share_plot, time_plot

Columns = dict[str, Callable[[Point], str]]

_TIMES: Columns = {
    "us / forward": lambda point: wording.microseconds(point.time_us),
    "kernel alone": lambda point: wording.microseconds(point.kernel_us),
    "speed-up": lambda point: f"{point.speedup:.2f}x",
    "CPU us": lambda point: wording.microseconds(point.cpu_us),
    "device us": lambda point: wording.microseconds(point.counts.device_us),
    "call us": lambda point: wording.microseconds(point.regime.overhead_us),
    "overhead": lambda point: f"{point.overhead_share:.0%}",
    "of the limit": lambda point: (
        f"{point.regime.name}-bound, {point.regime.reached:.0%}"
        if point.regime.explains
        else f"none: {point.regime.name} explains {point.regime.reached:.0%}"
    ),
}
_OPERATORS: Columns = {
    "operators": lambda point: str(point.counts.dispatched),
    "no work": lambda point: str(point.counts.bookkeeping),
    "launches": lambda point: str(point.counts.launched),
    "allocated": lambda point: wording.size(point.counts.bytes_allocated),
    "moved": lambda point: wording.size(point.counts.bytes_moved, point.counts.bytes_moved_known),
    "launched": lambda point: wording.counted(point.counts.launches),
}


def html_report(
    profile: Profile,
    made: Mapping[str, str],
    differences: Sequence[Difference] = (),
    sweep: Sweep | None = None,
) -> str:
    """`made`: date, machine, version and command (reports/provenance.py)."""
    sections = [
        _head(profile),
        _plots(profile),
        _times(profile),
        _operators(profile),
        _expectations(differences),
        _steps(profile),
        _flames(profile),
        _sweep(sweep),
        _method(profile, made),
    ]
    return page(f"{profile.model} · fused-mlp profile", "".join(sections))


def _head(profile: Profile) -> str:
    advice = "".join(said(_sentence(each)) for each in profile.advice)
    notes = "".join(remark(escape(f"Note: {note}.")) for note in profile.notes)
    compared = said(_sentence(profile.compared)) if profile.compared else ""
    invalid = said(not_valid(profile.problems), bad=True) if profile.problems else ""
    failures = "".join(
        said(f"{variant} was not profiled: {reason}", bad=True)
        for variant, reason in profile.failures.items()
    )
    return (
        f"<h1>{escape(profile.model)}</h1>"
        f"<p class='soft'>{wording.model(profile)} · {escape(wording.setting(profile))}<br>"
        f"{escape(_sentence(wording.limits(profile)))}</p>{compared}{invalid}{advice}{notes}{failures}"
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _plots(profile: Profile) -> str:
    legend = remark(
        "Solid: the arithmetic at the limit of the machine. Lighter: calling the steps. Faint: the rest. Each batch "
        "size has its own scale."
    )
    times = section("Time per forward pass", time_plot(profile))
    return f"<div class='pair'>{times}{section('Where it goes', share_plot(profile) + legend)}</div>"


def _times(profile: Profile) -> str:
    return section("Time", _by_batch(profile, _TIMES)) + remark(
        "Best of many calls, without the profiler. <em>call us</em> is the time of the same steps when they are 16 "
        "wide, for one or two rows: calling, and hardly any arithmetic. The largest of that, of reading the weights "
        "and of the arithmetic bounds a forward pass. <em>kernel alone</em> is the fused kernel called with an array, "
        "without torch around it: the time a request to the service pays."
    )


def _operators(profile: Profile) -> str:
    return section("Operators", _by_batch(profile, _OPERATORS)) + remark(
        "Dispatched per forward pass, nested ones too; <em>no work</em> are views, wrappers and allocations. A launch "
        "is an outermost operator that computes, on a GPU a kernel."
    )


def _by_batch(profile: Profile, columns: Columns) -> str:
    groups = []
    for batch in profile.batches:
        points = [point for point in profile.points if point.batch == batch]
        groups.append(
            [
                (
                    str(batch) if point is points[0] else "",
                    name(point.variant),
                    *(escape(cell(point)) for cell in columns.values()),
                )
                for point in points
            ]
        )
    return table(("batch", "variant", *columns), groups, left={"variant", "launched", "of the limit"})


def _steps(profile: Profile) -> str:
    groups = []
    for batch in profile.batches:
        steps = wording.costliest(profile, batch)
        groups.append(
            [
                (
                    str(batch) if step is steps[0] else "",
                    escape(step.name),
                    escape(step.what),
                    wording.count(step.flops),
                    wording.weights(profile, step),
                    wording.microseconds(step.limit_us),
                    wording.microseconds(step.fused_us),
                )
                for step in steps
            ]
        )
    if not any(groups):
        return ""
    titles = ("batch", "step", "what", "flops", "weights", "limit us", "fused us")
    left_out = remark(escape(wording.left_out(profile)))
    return (
        section("Steps", table(titles, groups, left={"step", "what"}))
        + left_out
        + remark(
            "<em>limit us</em> is the larger of a step's arithmetic and of reading its weights, at the limits of the "
            "machine. <em>fused us</em> is its time in the fused kernel, under the profiler. Steps that the kernel "
            "finishes together with a product stand in its row."
        )
    )


def _expectations(differences: Sequence[Difference]) -> str:
    if not differences:
        return ""
    verdicts = {True: "<span class='good'>as guessed</span>", False: "<span class='bad'>differs</span>"}
    rows = [
        (
            str(each.batch),
            f"{each.variant} {each.what}",
            str(each.expected),
            str(each.found),
            verdicts[each.right],
        )
        for each in differences
    ]
    titles = ("batch", "guess", "expected", "found", "")
    return section("Expected and found", table(titles, [rows], left={"guess", ""}))


def _flames(profile: Profile) -> str:
    groups = []
    for batch in profile.batches:
        flames = {variant: profile.flames.get(f"{variant}/{batch}") for variant in PROFILED}
        present = {variant: flame for variant, flame in flames.items() if flame is not None}
        scale = max((flame.us for flame in present.values()), default=0.0)
        figures = "".join(
            f"<figure><figcaption>{wording.VARIANT_TITLES[variant]}</figcaption><div class='scroll'>"
            f"{flame_graph(flame, scale, f'{variant} at batch {batch}')}</div></figure>"
            for variant, flame in present.items()
        )
        opened = " open" if batch == profile.batches[0] else ""
        if figures:
            groups.append(f"<details{opened}><summary>batch {batch}</summary>{figures}</details>")
    if not groups:
        return ""
    return section("Flame graphs", key(LEGEND) + "".join(groups)) + remark(
        "One scale per batch size. Times are those under the profiler, which slows every operator down; the tables "
        "have the times without it. Inside our kernel, gemm includes bias and relu, which are applied in registers; "
        "gemm and epilogue alternate tile by tile and are shown summed."
    )


def _sweep(sweep: Sweep | None) -> str:
    if sweep is None or not sweep.cells:
        return ""
    title = f"<p class='soft'>Speed-up of fused over eager: {escape(wording.sweep_title(sweep))}.</p>"
    busy = remark(wording.BUSY) if any(cell.busy for cell in sweep.cells) else ""
    return section("Where fusion pays", f"{title}<div class='scroll map'>{heat_map(sweep)}</div>{busy}")


def _method(profile: Profile, made: Mapping[str, str]) -> str:
    traces = "".join(f"<li><code>{escape(path)}</code></li>" for path in profile.traces.values())
    listed = f"<p>Traces, for ui.perfetto.dev or chrome://tracing:</p><ul>{traces}</ul>" if traces else ""
    described = {"kernel": profile.kernel or "no fused kernel", "torch": profile.torch, **made}
    return section("How this was made", facts(described.items()) + listed)
