# SPDX-License-Identifier: Apache-2.0
"""Figures of `python -m bench.profiling`: what `fused-mlp profile` finds for four models, a sweep, a live server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.docs.markdown import number, paragraphs, percent, provenance, span, table, times
from bench.docs.registry import Result, Results, figure

Column = tuple[str, Callable[["Point"], str]]


class Point:
    """One model at one batch size, by variant."""

    def __init__(self, model: dict[str, Any], batch: int) -> None:
        self.batch = batch
        self._variants = {p["variant"]: p for p in model["points"] if p["batch"] == batch}

    def __getitem__(self, variant: str) -> dict[str, Any]:
        found: dict[str, Any] = self._variants[variant]
        return found

    def time(self, variant: str) -> float:
        return float(self[variant]["time_us"])

    def kernel(self) -> float:
        return float(self["fused"]["kernel_us"])

    def bound(self, variant: str) -> str:
        return f"{self[variant]['bound_by']} {percent(self[variant]['reached'])}"


TIMES: tuple[Column, ...] = (
    ("eager us", lambda p: number(p.time("eager"))),
    ("compile us", lambda p: number(p.time("compile"))),
    ("fused us", lambda p: number(p.time("fused"))),
    ("kernel alone us", lambda p: number(p.kernel())),
    ("speed-up", lambda p: times(p.time("eager") / p.time("fused"))),
)
LAUNCHES: Column = (
    "launches eager / compile / fused",
    lambda p: " / ".join(str(p[variant]["launches"]) for variant in ("eager", "compile", "fused")),
)


def _points(result: Result, name: str) -> list[Point]:
    model = result["models"][name]
    return [Point(model, batch) for batch in sorted({p["batch"] for p in model["points"]})]


def _profile(results: Results, name: str, *more: Column, text: str = "") -> str:
    """Command, table, `text`, and where it comes from."""
    result = results["profiling"]
    columns = (*TIMES, *more)
    rows = [[str(p.batch), *(show(p) for _, show in columns)] for p in _points(result, name)]
    written = table(["batch", *(head for head, _ in columns)], rows, left=0)
    return paragraphs(f"`{result['models'][name]['command']}`", written, text, provenance(result))


def _kib(size: float) -> str:
    return f"{size / 1024:.0f} KiB" if size < 1024**2 else f"{size / 1024**2:.1f} MiB"


@figure("profile-linear")
def profile_linear(results: Results) -> str:
    """One linear layer: nothing to fuse."""
    ops: Column = (
        "eager ops (no work)",
        lambda p: f"{p['eager']['operators']} ({p['eager']['bookkeeping']})",
    )
    first = _points(results["profiling"], "linear")[0]
    call = " and ".join(f"{number(first[v]['overhead_us'])} us for {v}" for v in ("eager", "compile"))
    said = f"Of this, the call of one row takes {call} (*call us*)."
    return _profile(results, "linear", ops, LAUNCHES, text=said)


@figure("profile-geglu")
def profile_geglu(results: Results) -> str:
    """A GeGLU block, with the guess of its launches."""

    def allocated(point: Point) -> str:
        return " / ".join(_kib(point[v]["bytes_allocated"]) for v in ("eager", "fused"))

    wrong = results["profiling"]["models"]["geglu"]["wrong_expectations"]
    guess = "right at every batch size" if not wrong else f"wrong at {wrong} points"
    points = _points(results["profiling"], "geglu")
    eager = points[0]["eager"]
    compiled = [p.time("eager") / p.time("compile") for p in points]
    said = (
        f"The guess is {guess}. Eager dispatches {eager['operators']} operators for its "
        f"{eager['launches']} launches; {eager['bookkeeping']} of them do no work. torch.compile "
        f"is {span(min(compiled), max(compiled), '{:.1f}')} times as fast as eager."
    )
    return _profile(results, "geglu", LAUNCHES, ("allocated eager / fused", allocated), text=said)


@figure("profile-epilogue")
def profile_epilogue(results: Results) -> str:
    """The phases of the GeGLU block's layers at batch 8, from a trace."""
    first, second = results["profiling"]["models"]["geglu"]["layers"]["8"]
    lines = [f"{'layer 0':12}{number(first['us']):>8} us   rows 8, 768 -> {first['what']}"]
    lines += [f"{'  ' + name:12}{number(us):>8} us" for name, us in first["phases"].items()]
    lines += [f"{'layer 1':12}{number(second['us']):>8} us   rows 8, 3072 -> {second['what']}, no epilogue"]
    share = percent(first["phases"]["epilogue"] / first["us"])
    return paragraphs(
        f"The trace shows the cost of this *epilogue*: {share} of layer 0 at batch 8.",
        "\n".join(("```text", *lines, "```")),
    )


def _against_guess(expectation: dict[str, Any], noun: str) -> str:
    """The count, and whether `--expect` had it."""
    expected, found = expectation["expected"], expectation["found"]
    return f"{found} {noun}, {'as guessed' if expected == found else f'not the {expected} guessed'}"


@figure("profile-small")
def profile_small(results: Results) -> str:
    """Small layers, and how far eager is from arithmetic."""
    model = results["profiling"]["models"]["small"]
    first = Point(model, 1)
    advice = model["advice"].partition(";")[0]
    said = f"{advice[0].upper()}{advice[1:]}.".replace("%", " %")
    found = {each["what"]: each for each in model["expectations"] if each["batch"] == 1}
    text = (
        f"Eager has {_against_guess(found['launches'], 'launches')}, and {_against_guess(found['ops'], 'operators')}. "
        f"The report says: *{said}* Here fusing removes calls, not arithmetic: {first['fused']['launches']} launch "
        f"instead of {first['eager']['launches']}. It allocates {first['fused']['bytes_allocated']:,} bytes, its "
        f"result, instead of {first['eager']['bytes_allocated']:,}, the results of all layers."
    )
    return _profile(results, "small", ("eager is bound by", lambda p: p.bound("eager")), text=text)


@figure("profile-wide")
def profile_wide(results: Results) -> str:
    """784-512-256-10, a small classifier."""
    return _profile(results, "wide", ("fused is bound by", lambda p: p.bound("fused")))


@figure("profile-module")
def profile_module(results: Results) -> str:
    """The overhead of calling the kernel as a torch module, for the smaller models at small batches."""
    result = results["profiling"]
    added = [
        point.time("fused") - point.kernel()
        for name in ("linear", "small", "wide")
        for point in _points(result, name)
        if point.batch <= 8
    ]
    small = Point(result["models"]["small"], 1)
    return (
        f"For the smaller models of this page it adds {span(min(added), max(added), '{:.0f}')} us at up to 8 rows, "
        "which a request to the server does not pay. Here it is most of the time: one row takes "
        f"{number(small.time('fused'))} us as a torch module, and {number(small.kernel())} us in the kernel."
    )


@figure("profile-sweep")
def profile_sweep(results: Results) -> str:
    """Speed-up of fused over eager by width and batch size."""
    result = results["profiling"]
    cells = {(c["width"], c["batch"]): c for c in result["sweep"]["cells"]}
    widths, batches = (sorted({key[place] for key in cells}) for place in (0, 1))

    def speedup(width: int, batch: int) -> str:
        found = cells[width, batch]
        return "busy" if found["busy"] else f"{found['eager_us'] / found['fused_us']:.1f}x"

    rows = [[str(width), *(speedup(width, batch) for batch in batches)] for width in widths]
    return paragraphs(table(["width", *map(str, batches)], rows, left=0), provenance(result))


@figure("profile-live")
def profile_live(results: Results) -> str:
    """The summary that `fused-mlp profile --live` prints."""
    result = results["profiling"]
    live = result["live"]
    batches = next(phase["count"] for phase in live["phases"] if phase["phase"] == "kernel")
    rows = [
        [p["phase"], f"{p['count']:,}", *(number(p[key]) for key in ("mean", "median", "p99"))]
        for p in live["phases"]
    ]
    return paragraphs(
        f"{live['requests']:,} requests in {batches:,} batches, {live['requests'] / live['seconds']:,.0f} requests/s, "
        f"from {live['clients']} Python clients with one request each at a time:",
        table(["phase", "times", "mean us", "median us", "p99 us"], rows),
        provenance(result),
    )
