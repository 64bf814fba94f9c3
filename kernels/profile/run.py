# SPDX-License-Identifier: Apache-2.0
"""A whole profile: every variant at every batch size is timed, traced, counted and classified."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fused_mlp.kernels.backends.cpu_lowering import narrow_matrices
from fused_mlp.kernels.cuda.running.current import current_device
from fused_mlp.kernels.profile.capture import capture
from fused_mlp.kernels.profile.counting import count
from fused_mlp.kernels.profile.cpu_phases import Recording, recorded_phases, step_times
from fused_mlp.kernels.profile.machine import Limits, describe_machine, measure_cpu, measure_cuda
from fused_mlp.kernels.profile.regimes import advise, classify, judge
from fused_mlp.kernels.profile.results import (
    PROFILED,
    Counts,
    Flame,
    Point,
    Profile,
    ProfileError,
    StepCost,
    VariantName,
)
from fused_mlp.kernels.profile.shapes import narrow_twin, random_rows, reduced_alike
from fused_mlp.kernels.profile.step_costs import step_costs
from fused_mlp.kernels.profile.timing import OtherLoad, Time, time_calls
from fused_mlp.kernels.profile.trace_events import flame_of
from fused_mlp.kernels.profile.variants import ProfiledVariant, is_narrow, one_line
from fused_mlp.kernels.registry import parse_device
from fused_mlp.kernels.work import Work, work_of
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.weights.quantization import to_bfloat16, widened

Progress = Callable[[str], None]
_KERNEL = "kernel of fused"
_MORE_ATTEMPTS = 2  # if noise makes the kernel slower than the module around it


@dataclass(frozen=True)
class Options:
    batches: Sequence[int] = (1, 8, 64, 512)
    device: str = "cpu"
    threads: int = 1
    variants: Sequence[VariantName] = PROFILED
    budget_s: float = 0.3  # of timing, per variant and batch size
    trace_dir: Path | None = None


@dataclass
class _Ready:
    """A variant that runs, and the call that measures its overhead."""

    variant: ProfiledVariant
    packing: Recording
    # The same steps without arithmetic, by whether the batch is a single row: torch.compile makes two graphs.
    narrow: Mapping[bool, Callable[[], object]]


@dataclass(frozen=True)
class _Taken:
    """The measurements of one variant at one batch size."""

    variant: VariantName
    batch: int
    time: Time
    call_us: float
    counts: Counts
    kernel_us: float | None  # of fused


@dataclass(frozen=True)
class _Roofline:
    """The work of a variant, and the limits of the machine for it."""

    work: Work
    limits: Limits


def profile(mlp: Mlp, options: Options, progress: Progress = lambda _: None) -> Profile:
    kind, index = parse_device(options.device)
    if kind == "cuda" and not torch.cuda.is_available():
        raise ProfileError(
            f"device {options.device}: torch sees no CUDA device here; profile with --device cpu"
        )
    threads_before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        with nullcontext() if index is None else current_device(index):
            return replace(_profile(mlp, replace(options, device=kind), progress), device=options.device)
    finally:
        torch.set_num_threads(threads_before)


def _profile(mlp: Mlp, options: Options, progress: Progress) -> Profile:
    progress("measuring the limits of the machine")
    cuda = options.device == "cuda"
    works = work_of(mlp.spec), _work_of_fused(mlp, cuda)
    limits = _measure(works, options)
    ready, failures = _prepare(mlp, options, progress)
    taken: list[_Taken] = []
    flames: dict[str, Flame] = {}
    traces: dict[str, str] = {}
    phases: dict[int, dict[str, float]] = {}  # batch -> the fused kernel's steps
    missing: dict[int, float] = {}  # batch -> share of the time
    for batch in options.batches:
        progress(f"batch {batch}: timing {', '.join(ready)}")
        x = random_rows(mlp.spec, batch).to(options.device)
        calls = {name: each.variant.bind(x) for name, each in ready.items()}
        narrow = {f"narrow {name}": each.narrow[batch == 1] for name, each in ready.items()}
        alone = {f"kernel of {name}": each.variant.bind_kernel(x) for name, each in ready.items()}
        kernels = {name: call for name, call in alone.items() if call is not None}
        others = OtherLoad()
        times = time_calls({**calls, **narrow, **kernels}, options.budget_s)
        for _ in range(_MORE_ATTEMPTS):
            if _KERNEL not in times or times[_KERNEL].us <= times["fused"].us:
                break
            pair = {"fused": calls["fused"], _KERNEL: kernels[_KERNEL]}
            again = time_calls(pair, options.budget_s)
            times |= {key: min(times[key], again[key], key=lambda each: each.us) for key in pair}
        missing[batch] = others.missing_share(options.threads)
        for name, each in ready.items():
            progress(f"batch {batch}: tracing {name}")
            names = each.variant.operation_names(mlp)
            trace = capture(calls[name], options.device, each.variant.strategy(batch), each.packing, names)
            flames[f"{name}/{batch}"] = flame_of(trace)
            if options.trace_dir is not None:
                traces[f"{name}/{batch}"] = str(_write_trace(trace, options.trace_dir, name, batch))
            counts = count(trace)
            if name == "fused" and not cuda:
                counts = _of_cpu_kernel(counts, works[1], batch)
                phases[batch] = step_times(trace)
            kernel_us = times[f"kernel of {name}"].us if f"kernel of {name}" in times else None
            taken.append(_Taken(name, batch, times[name], times[f"narrow {name}"].us, counts, kernel_us))
    # Measured again at the end: limits from a machine that was busy at the start would be too low.
    wide, own = map(Limits.best, limits, _measure(works, options))
    if not cuda:  # the same arithmetic, measured twice as often
        wide, own = (
            replace(each, flops_per_s=max(wide.flops_per_s, own.flops_per_s)) for each in (wide, own)
        )
    eager, fused = _Roofline(works[0], wide), _Roofline(works[1], own)
    points = _points(taken, eager, fused)
    problems, notes = judge({} if cuda else missing, points)
    found = Profile(
        model=mlp.spec.summary(),
        parameters=mlp.spec.parameters,
        device=options.device,
        threads=options.threads,
        machine=describe_machine(),
        torch=str(torch.__version__),
        flops_per_s=wide.flops_per_s,
        bytes_per_s=wide.bytes_per_s,
        kernel=ready["fused"].variant.description if "fused" in ready else "",
        batches=tuple(options.batches),
        points=points,
        failures=failures,
        advice=(),
        problems=problems,
        notes=notes,
        precision=mlp.precision,
        compared=_compared(mlp, list(ready)),
        int8_ops_per_s=own.int8_ops_per_s,
        fused_bytes_per_s=own.bytes_per_s if works[0] != works[1] else None,
        steps=_steps(mlp.spec, options.batches, fused, phases),
        flames=flames,
        traces=traces,
    )
    return replace(found, advice=_advice(found))


def _work_of_fused(mlp: Mlp, cuda: bool) -> Work:
    """A GPU multiplies int8 weights dequantised to bfloat16."""
    narrow = narrow_matrices(mlp.unreduced(), mlp.reduced)
    if cuda:
        narrow = {name: to_bfloat16(widened(matrix)) for name, matrix in narrow.items()}
    return work_of(mlp.spec, narrow)


def _measure(works: tuple[Work, Work], options: Options) -> tuple[Limits, Limits]:
    """For eager and compile, in float32, and for fused."""

    def measure(work: Work) -> Limits:
        weight_bytes = max(work.weight_bytes, 1)  # a program may have none
        if options.device == "cuda":
            return measure_cuda(weight_bytes, torch.float32 if work == wide else torch.bfloat16)
        return measure_cpu(weight_bytes, options.threads, int8=work.int8_flops > 0)

    wide, own = works
    limits = measure(wide)
    return limits, limits if own == wide else measure(own)


def _compared(mlp: Mlp, variants: Sequence[VariantName]) -> str:
    if not is_narrow(mlp):
        return ""
    kept = mlp.precision if mlp.precision != "float32" else mlp.spec.dtype
    others = " and ".join(name for name in variants if name != "fused")
    widened_there = f"{others} {'run' if ' ' in others else 'runs'} the same weights widened to float32"
    if "fused" not in variants:
        return f"the weights are {kept}; {widened_there}"
    own = f"fused is the kernel of the {kept} weights that would be served"
    return f"{own}; {widened_there}" if others else own


def _of_cpu_kernel(counts: Counts, work: Work, rows: int) -> Counts:
    """The CPU kernel allocates with numpy and reads packed weights, which the profiler does not see."""
    return replace(
        counts,
        bytes_allocated=rows * work.output_bytes,
        bytes_moved=work.bytes_moved(rows),
        bytes_moved_known=True,
    )


def _steps(
    spec: MlpSpec, batches: Sequence[int], fused: _Roofline, phases: Mapping[int, Mapping[str, float]]
) -> tuple[StepCost, ...]:
    costs: list[StepCost] = []
    for batch in batches:
        costs += step_costs(spec, fused.work, batch, fused.limits, phases.get(batch, {}))
    return tuple(costs)


def _points(taken: Sequence[_Taken], wide: _Roofline, fused: _Roofline) -> tuple[Point, ...]:
    calling: dict[tuple[str, bool], float] = {}
    for each in taken:
        key = each.variant, each.batch == 1
        calling[key] = min(calling.get(key, each.call_us), each.call_us)
    eager = {each.batch: each.time.us for each in taken if each.variant == "eager"}
    points = []
    for each in taken:
        own = fused if each.variant == "fused" else wide
        compute_us = each.batch * own.limits.compute_s(own.work.flops, own.work.int8_flops) * 1e6
        call_us = calling[each.variant, each.batch == 1]
        regime = classify(each.time.us, call_us, own.limits.read_s * 1e6, compute_us)
        speedup = eager.get(each.batch, each.time.us) / each.time.us
        points.append(
            Point(
                each.variant,
                each.batch,
                each.time.us,
                each.time.cpu_us,
                each.counts,
                regime,
                speedup,
                each.kernel_us,
            )
        )
    return tuple(points)


def _prepare(
    mlp: Mlp, options: Options, progress: Progress
) -> tuple[dict[VariantName, _Ready], dict[str, str]]:
    """Every variant that can run here, and the reason for each that cannot. A failure does not affect the others."""
    ready: dict[VariantName, _Ready] = {}
    failures: dict[str, str] = {}
    twin = reduced_alike(narrow_twin(mlp.spec), mlp)
    sample = random_rows(twin.spec, 2).to(options.device)
    for name in options.variants:
        progress(f"building {name}")
        try:
            with recorded_phases() as packing:
                variant = ProfiledVariant(name, mlp, options.device, options.threads)
            packing.spans = [span for span in packing.spans if span.phase == "pack"]
            for batch in options.batches:  # torch.compile compiles at the first call
                variant.bind(random_rows(mlp.spec, batch).to(options.device))()
            narrow = ProfiledVariant(name, twin, options.device, options.threads)
            calls = {rows == 1: narrow.bind(sample[:rows]) for rows in {min(2, b) for b in options.batches}}
            for call in calls.values():
                call()
            ready[name] = _Ready(variant, packing, calls)
        except Exception as error:
            failures[name] = one_line(error)
    if not ready:
        raise ProfileError(
            f"nothing could be profiled: {'; '.join(f'{k}: {v}' for k, v in failures.items())}"
        )
    return ready, failures


def _advice(found: Profile) -> tuple[str, ...]:
    sentences = []
    for batch in found.batches:
        eager = found.point("eager", batch)
        if eager is not None:
            fused, compiled = found.point("fused", batch), found.point("compile", batch)
            sentences.append(advise(eager, fused, compiled, found.precision))
    return tuple(sentences)


def _write_trace(trace: dict[str, object], folder: Path, name: str, batch: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-batch{batch}.json"
    path.write_text(json.dumps(trace))
    return path
