# SPDX-License-Identifier: Apache-2.0
"""Which candidate serves a model: each is checked for correctness and batch invariance, timed per bucket,
and one is chosen for all buckets. One, because two strategies need not sum in the same order, and a row's
result may not depend on the bucket it ran in. Runs on the loading thread; knows the Runtime seam, not
CUDA."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fused_mlp.kernels.backends.eager import EagerKernel
from fused_mlp.kernels.base import KernelInfo
from fused_mlp.kernels.cuda.planning.launch_counts import eager_launches
from fused_mlp.kernels.cuda.running.contexts import BUCKETS, ContextPool, LaunchContext
from fused_mlp.kernels.cuda.running.kernel import CudaKernel
from fused_mlp.kernels.cuda.running.program import Program
from fused_mlp.kernels.cuda.running.runtime import Runtime
from fused_mlp.kernels.errors import KernelError
from fused_mlp.kernels.selfcheck import check_against_float64
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.inputs import spread_ids

# Distinct rows in the invariance probe: more than any tile has, so that each is seen at many positions.
PROBE_ROWS = 193
# A candidate that changes a row's bits between buckets falls back to one shape for every batch.
SINGLE_BUCKET = (256,)


@dataclass(frozen=True)
class Candidate:
    """A strategy that may serve the model; `build` puts its weights on the device."""

    label: str
    build: Callable[[], Program]


@dataclass(frozen=True)
class Trial:
    """The outcome of trying a candidate: seconds per forward by bucket, or why it is out."""

    label: str
    buckets: tuple[int, ...] = BUCKETS
    seconds: Mapping[int, float] = field(default_factory=dict)
    excluded: str = ""

    def seconds_for(self, rows: int) -> float:
        return self.seconds[
            next((bucket for bucket in self.buckets if bucket >= rows), self.buckets[-1])
        ] * max(1, math.ceil(rows / self.buckets[-1]))


def try_candidate(
    candidate: Candidate, mlp: Mlp, runtime: Runtime, info: KernelInfo, *, timed: bool
) -> Trial:
    """Build, check, time, and let go: a GPU that has room for one candidate has room for the race. A failure of
    one leaves the others in it."""
    try:
        program = candidate.build()
        for buckets in (BUCKETS, SINGLE_BUCKET):
            context = LaunchContext(runtime, program, mlp.spec, buckets)
            kernel = CudaKernel(mlp.spec, info, ContextPool([context]))
            check_against_float64(kernel, mlp, lambda: EagerKernel(mlp, str(runtime.device), None))
            if is_batch_invariant(context, mlp.spec):
                seconds = {bucket: context.seconds(bucket) for bucket in buckets} if timed else {}
                return Trial(candidate.label, buckets, seconds)
    except KernelError as error:
        return Trial(candidate.label, excluded=str(error))
    except Exception as error:  # torch's are RuntimeErrors, Triton's (compiler, resources) are not
        return Trial(candidate.label, excluded=device_error(error, mlp))
    return Trial(candidate.label, excluded="a row's result depends on the rows beside it")


def is_batch_invariant(context: LaunchContext, spec: MlpSpec) -> bool:
    """Every probe row, at many positions of every bucket, must come out bit for bit as in the smallest
    bucket. Sums taken in another order differ in a good part of all results, so this many rows do not miss
    it."""
    rng = np.random.default_rng(1)
    probe = rng.standard_normal((PROBE_ROWS, spec.in_features), dtype=np.float32)
    spread_ids(spec.record, probe)
    expected = np.empty((PROBE_ROWS, spec.out_features), np.float32)
    smallest = context.buckets[0]
    for start in range(0, PROBE_ROWS, smallest):
        part = slice(start, start + smallest)
        context.run(probe[part], expected[part])
    for bucket in context.buckets:
        rows = np.arange(5, 5 + bucket) % PROBE_ROWS
        y = np.empty((bucket, spec.out_features), np.float32)
        context.run(probe[rows], y)
        if not np.array_equal(y.view(np.int32), expected[rows].view(np.int32)):
            return False
    return True


def choose(trials: Sequence[Trial]) -> Trial:
    """The least geometric mean, over all buckets, of time relative to the bucket's best: no bucket counts
    for more because its times are longer. The first one wins a tie, and when nothing was timed."""
    standing = [trial for trial in trials if not trial.excluded]
    if not standing:
        raise KernelError(
            "no strategy can run this model: "
            + "; ".join(f"{trial.label}: {trial.excluded}" for trial in trials)
        )
    if not all(trial.seconds for trial in standing):
        return standing[0]
    best = {rows: min(trial.seconds_for(rows) for trial in standing) for rows in BUCKETS}

    def slowdown(trial: Trial) -> float:
        return math.fsum(math.log(trial.seconds_for(rows) / best[rows]) for rows in BUCKETS)

    return min(standing, key=slowdown)


def explain(trials: Sequence[Trial]) -> str:
    """`us per forward at 16/32/... rows: whole/16 5.1/5.2/...; cublas 9.0/...; out: layered/16 (...)`."""
    timed = [
        f"{trial.label} {'/'.join(f'{trial.seconds_for(rows) * 1e6:.1f}' for rows in BUCKETS)}"
        for trial in trials
        if trial.seconds
    ]
    out = [f"{trial.label} ({trial.excluded})" for trial in trials if trial.excluded]
    if not timed:
        text = "chosen by rule, not timed"
    else:
        text = f"us per forward at {'/'.join(map(str, BUCKETS))} rows: {'; '.join(timed)}"
    return f"{text}; out: {'; '.join(out)}" if out else text


def select(
    candidates: Sequence[Candidate],
    mlp: Mlp,
    runtime: Runtime,
    info: KernelInfo,
    *,
    contexts: int,
    timed: bool = True,
) -> CudaKernel:
    """A kernel over the chosen candidate, with that many batches in flight. Untimed, the first usable one
    serves."""
    trials: list[Trial] = []
    for candidate in candidates:
        trials.append(try_candidate(candidate, mlp, runtime, info, timed=timed))
        runtime.release()
        if not timed and not trials[-1].excluded:
            break
    winner = choose(trials)
    try:
        program = candidates[trials.index(winner)].build()  # once more: what was tried is gone
        made = [LaunchContext(runtime, program, mlp.spec, winner.buckets) for _ in range(contexts)]
        for context in made:
            context.replay_all()
    except Exception as error:
        raise KernelError(f"{winner.label}: {device_error(error, mlp)}") from error
    launches = f"launches per forward: {program.launches}, eager {eager_launches(mlp.spec)}"
    info = replace(info, strategy=winner.label, reason=f"{explain(trials)}; {launches}")
    return CudaKernel(mlp.spec, info, ContextPool(made))


def device_error(error: Exception, mlp: Mlp) -> str:
    """CUDA's error in one line; if memory ran out, also the size of the model and a remedy."""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if not isinstance(error, torch.OutOfMemoryError):
        return f"{'CUDA failed' if isinstance(error, RuntimeError) else type(error).__name__}: {said}"
    mib = sum(array.nbytes for array in mlp.tensors().values()) / (1 << 20)
    return f"no room on the GPU for {mib:.1f} MiB of weights and buffers ({said}): serve fewer models there"
