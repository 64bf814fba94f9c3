# SPDX-License-Identifier: Apache-2.0
"""Triton's ModelStatistics from the counters of a version's lanes, both variants added up."""

from __future__ import annotations

from typing import Any

from fused_mlp.protos import open_inference_pb2 as pb
from fused_mlp.service.catalog.records import ServedVersion
from fused_mlp.service.errors import Code


def model_statistics(served: ServedVersion) -> Any:
    snapshots = [lane.snapshot() for lane in served.lanes.values()]
    durations = [s.requests.duration for s in snapshots]
    total = sum(d.count for d in durations)
    succeeded = sum(s.requests.codes.get(Code.OK, 0) for s in snapshots)
    ns = _nanoseconds(durations)
    queued = [s.queue_duration for s in snapshots]
    run = sum(
        h.count for h in queued
    )  # requests that reached a kernel; Triton's clients want one count for all phases
    # The histogram has no duration per code: time is shared out by count.
    success_ns = ns * succeeded // total if total else 0
    return pb.ModelStatistics(
        name=served.model,
        version=str(served.version),
        inference_count=sum(s.batch_rows.sum for s in snapshots),
        execution_count=sum(sum(s.batches.values()) for s in snapshots),
        inference_stats=pb.InferStatistics(
            success=pb.StatisticDuration(count=succeeded, ns=success_ns),
            fail=pb.StatisticDuration(count=total - succeeded, ns=ns - success_ns),
            queue=pb.StatisticDuration(count=run, ns=_nanoseconds(queued)),
            compute_input=pb.StatisticDuration(count=run, ns=sum(s.gather_ns for s in snapshots)),
            compute_infer=pb.StatisticDuration(count=run, ns=sum(s.compute_ns for s in snapshots)),
            # Not timed: copying an answer out is a part of encoding it, which `success` covers.
            compute_output=pb.StatisticDuration(count=run, ns=0),
        ),
    )


def _nanoseconds(histograms: list[Any]) -> int:
    return sum(h.sum for h in histograms)
