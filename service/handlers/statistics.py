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
            queue=_duration([s.queue_duration for s in snapshots]),
            compute_infer=_duration([s.compute_duration for s in snapshots]),
        ),
    )


def _duration(histograms: list[Any]) -> Any:
    return pb.StatisticDuration(count=sum(h.count for h in histograms), ns=_nanoseconds(histograms))


def _nanoseconds(histograms: list[Any]) -> int:
    return sum(h.sum for h in histograms)
