"""A whole profile: every variant at every batch size, timed, traced, counted and explained."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kernels.profile.capture import capture
from kernels.profile.counting import count
from kernels.profile.errors import ProfileError
from kernels.profile.flames import flame_of
from kernels.profile.machine import describe_machine, measure_cpu, measure_cuda
from kernels.profile.native_phases import Recording, recorded_phases
from kernels.profile.regimes import advise, classify
from kernels.profile.results import VARIANTS, Flame, Point, Profile, VariantName
from kernels.profile.shapes import narrow_twin, work_of
from kernels.profile.timing import time_calls
from kernels.profile.variants import Variant, one_line
from models import Mlp

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    batches: Sequence[int] = (1, 8, 64, 512)
    device: str = "cpu"
    threads: int = 1
    variants: Sequence[VariantName] = VARIANTS
    budget_s: float = 0.3  # of timing, per variant and batch size
    trace_dir: Path | None = None


@dataclass
class _Ready:
    """A variant that runs, and what it costs to call it."""

    variant: Variant
    packing: Recording
    call_us: dict[bool, float]  # by whether the batch is a single row: torch.compile makes two graphs


def profile(mlp: Mlp, options: Options, progress: Progress = lambda _: None) -> Profile:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ProfileError("device cuda: torch sees no CUDA device here; profile with --device cpu")
    threads_before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        return _profile(mlp, options, progress)
    finally:
        torch.set_num_threads(threads_before)


def _profile(mlp: Mlp, options: Options, progress: Progress) -> Profile:
    progress("measuring what the machine can do")
    weight_bytes = work_of(mlp.spec, 1).weight_bytes
    cuda = options.device == "cuda"
    limits = measure_cuda(weight_bytes) if cuda else measure_cpu(weight_bytes, options.threads)
    ready, failures = _prepare(mlp, options, progress)
    points: list[Point] = []
    flames: dict[str, Flame] = {}
    traces: dict[str, str] = {}
    for batch in options.batches:
        progress(f"batch {batch}: timing {', '.join(ready)}")
        x = torch.randn(batch, mlp.spec.in_features, generator=torch.Generator().manual_seed(2)).to(
            options.device
        )
        calls = {name: each.variant.bind(x) for name, each in ready.items()}
        times = time_calls(calls, options.budget_s)
        for name, each in ready.items():
            progress(f"batch {batch}: tracing {name}")
            trace = capture(calls[name], options.device, each.variant.strategy(batch), each.packing)
            key = f"{name}/{batch}"
            flames[key] = flame_of(trace)
            if options.trace_dir is not None:
                traces[key] = str(_write_trace(trace, options.trace_dir, name, batch))
            work = work_of(mlp.spec, batch)
            counts = count(trace)
            if name == "fused" and not cuda:
                # The kernel allocates its result by numpy, and reads no list of tensors but the packed weights.
                counts = replace(
                    counts,
                    bytes_allocated=work.output_bytes,
                    bytes_moved=work.bytes_moved,
                    bytes_moved_known=True,
                )
            took = times[name]
            regime = classify(
                took.us, each.call_us[batch == 1], limits.read_s * 1e6, work.flops / limits.flops_per_s * 1e6
            )
            speedup = times["eager"].us / took.us if "eager" in times else 1.0
            points.append(Point(name, batch, took.us, took.cpu_us, counts, regime, speedup))
    found = Profile(
        model=mlp.spec.summary(),
        parameters=mlp.spec.parameters,
        device=options.device,
        threads=options.threads,
        machine=describe_machine(),
        torch=str(torch.__version__),
        flops_per_s=limits.flops_per_s,
        bytes_per_s=limits.bytes_per_s,
        kernel=ready["fused"].variant.description if "fused" in ready else "",
        batches=tuple(options.batches),
        points=tuple(points),
        failures=failures,
        advice=(),
        flames=flames,
        traces=traces,
    )
    return replace(found, advice=_advice(found))


def _prepare(
    mlp: Mlp, options: Options, progress: Progress
) -> tuple[dict[VariantName, _Ready], dict[str, str]]:
    """Every variant that can run here; the others with the reason. One that fails leaves the rest alone."""
    ready: dict[VariantName, _Ready] = {}
    failures: dict[str, str] = {}
    twin = narrow_twin(mlp.spec)
    sample = torch.randn(2, twin.spec.in_features).to(options.device)
    for name in options.variants:
        progress(f"building {name}")
        try:
            with recorded_phases() as packing:
                variant = Variant(name, mlp, options.device, options.threads)
            packing.spans = [span for span in packing.spans if span.phase == "pack"]
            for batch in options.batches:  # torch.compile works at the first call
                variant.bind(torch.randn(batch, mlp.spec.in_features).to(options.device))()
            narrow = Variant(name, twin, options.device, options.threads)
            calls = {rows == 1: narrow.bind(sample[:rows]) for rows in {min(2, b) for b in options.batches}}
            call_us = {single: took.us for single, took in time_calls(calls, options.budget_s).items()}
            ready[name] = _Ready(variant, packing, call_us)
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
            sentences.append(advise(eager, found.point("fused", batch), found.point("compile", batch)))
    return tuple(sentences)


def _write_trace(trace: dict[str, object], folder: Path, name: str, batch: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-batch{batch}.json"
    path.write_text(json.dumps(trace))
    return path
