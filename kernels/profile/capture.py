# SPDX-License-Identifier: Apache-2.0
"""Runs one variant at one batch size under torch.profiler. The trace includes the CPU kernel's phases."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from fused_mlp.kernels.profile.cpu_phases import Recording, merge, recorded_phases
from fused_mlp.kernels.profile.trace_events import FORWARD, Event

# The first calls are not representative, nor is the profiler's own first round.
_WAIT, _WARM_UP, ACTIVE = 1, 2, 9


def capture(
    call: Callable[[], object],
    device: str,
    strategy: str = "",
    packing: Recording | None = None,
    names: Sequence[str] = (),
) -> Event:
    """The trace of a few forward passes, as Chrome's trace format. `packing`: phases recorded at load, added too.
    `names`: of the CPU kernel's operations, in order."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    schedule = torch.profiler.schedule(wait=_WAIT, warmup=_WARM_UP, active=ACTIVE, repeat=1)
    with (
        recorded_phases() as recording,
        torch.profiler.profile(
            activities=activities, schedule=schedule, record_shapes=True, profile_memory=True
        ) as profiler,
    ):
        for _ in range(_WAIT + _WARM_UP + ACTIVE):
            with torch.profiler.record_function(FORWARD):
                call()
            profiler.step()
    trace = _export(profiler)
    merge(trace, recording, strategy, names)
    if packing is not None:
        packing.wall_offset_ns = recording.wall_offset_ns
        merge(trace, packing, strategy, names)
    return trace


def _export(profiler: torch.profiler.profile) -> Event:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace: Event = json.loads(path.read_text())
    trace.pop("traceName", None)  # the temporary path
    trace.pop("host_name", None)  # traces are shared with others
    return trace
