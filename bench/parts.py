# SPDX-License-Identifier: Apache-2.0
"""The benchmarks by name: how each is run, in full and quickly, where its result goes, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Part:
    """One command, one result file. `seconds`: about, in full on two cores; a quick run takes a fraction of it."""

    module: str
    says: str
    result: str
    seconds: int
    options: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    quick_seconds: int = 15
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, quick: bool) -> list[str]:
        return ["-m", self.module, *(self.quick if quick else self.options)]

    def path(self, folder: Path) -> Path:
        return folder / f"{self.result}.json"


_BESIDE = (
    "--engines", "eager", "ONNX Runtime", "OpenVINO", "--batches", "33", "200", "1000",
    "--shapes", "640-2560-640 relu", "300-700-150-20 relu", "784-512-256-10 relu", "256-1024-1024-256 gelu",
    "pre-LN tower 256x4", "LayerNorm 512x4 relu", "NeRF 63-256x8",
)  # fmt: skip
_QUICK_BESIDE = (
    "--rounds", "1", "--engines", "eager", "--batches", "33", "--shapes", "784-512-256-10 relu", "NeRF 63-256x8",
)  # fmt: skip

PARTS: dict[str, Part] = {
    "kernels": Part(
        "bench.kernels",
        "one forward pass: eager, torch.compile, ONNX Runtime, OpenVINO",
        "kernels",
        500,
        ("--rounds", "3"),
        ("--quick", "--rounds", "1", "--threads", "1", "--batches", "1", "8", "16", "64", "128"),
        45,
    ),
    "int8": Part(
        "bench.kernels",
        "the same in int8 and bfloat16",
        "kernels-int8",
        270,
        ("--precision", "--rounds", "3", "--batches", "1", "8", "64", "128"),
        (
            "--precision", "--rounds", "1", "--threads", "1", "--batches", "1", "8", "128", "--shapes",
            "64-128-128-10 relu", "784-512-256-10 relu", "1024-4096-1024 gelu", "2048x4 relu",
            "--engines", "fused int8", "fused bf16", "torch int8 fbgemm",
        ),
        30,
    ),
    "int8-avx2": Part(
        "bench.kernels",
        "int8 without VNNI",
        "kernels-int8-avx2",
        40,
        (
            "--precision", "--threads", "1", "--batches", "64", "256", "--engines", "fused int8",
            "--output", "bench/results/kernels-int8-avx2.json",
        ),
        (
            "--precision", "--rounds", "1", "--threads", "1", "--batches", "64", "--engines", "fused int8", "--shapes",
            "64-128-128-10 relu", "784-512-256-10 relu",
        ),
        variables={"FUSED_MLP_ISA": "avx2"},
    ),
    "errors": Part(
        "bench.kernels.errors",
        "how far int8 and bfloat16 are from float64",
        "precision-errors",
        60,
        (),
        ("--shapes", "64-128-128-10 relu", "784-512-256-10 relu"),
    ),
    "beside": Part(
        "bench.kernels",
        "medians beside a process that uses 40 % of a core",
        "kernels-beside",
        90,
        ("--beside", "0.4", *_BESIDE),
        ("--beside", "0.4", *_QUICK_BESIDE),
    ),
    "beside-long": Part(
        "bench.kernels",
        "the same beside bursts of 100 ms",
        "kernels-beside-long",
        170,
        (
            "--beside", "0.4", "--burst-ms", "100", *_BESIDE,
            "--output", "bench/results/kernels-beside-long.json",
        ),
        ("--beside", "0.4", "--burst-ms", "100", *_QUICK_BESIDE),
    ),
    "rankers": Part(
        "bench.kernels.rankers",
        "rankers with ids and tables: eager, torch.compile, ONNX Runtime, random reads",
        "rankers",
        420,
        (),
        ("--rounds", "1", "--batches", "1", "64", "--shapes", "small, 8 x 1,000 x 8", "bags, 8 x 20 of 100,000 x 16"),
        60,
    ),
    "profiling": Part(
        "bench.profiling",
        "where a forward pass spends its time: fused-mlp profile on four models",
        "profiling",
        240,
        (),
        ("--quick",),
        110,
    ),
    "serving": Part(
        "bench.serving",
        "requests end to end: fused, unfused, grpc.aio, mosec, Triton, echoes",
        "serving",
        400,
        ("--peers",),
        ("--quick", "--peers"),
        120,
    ),
    "servers": Part(
        "bench.serving.servers",
        "this server beside Triton, mosec, LitServe, BentoML, MLServer, KServe, Ray Serve and others",
        "servers",
        360,
        (),
        ("--quick",),
        120,
    ),
    "overload": Part(
        "bench.serving.overload",
        "answers within the deadline at 0.5 to 10 times the capacity, beside mosec, Triton and grpc.aio",
        "overload",
        330,
        (),
        ("--quick",),
        150,
    ),
    "low-rate": Part(
        "bench.serving.low_rate",
        "CPU per request at fixed rates, with one kernel thread and with all",
        "low-rate",
        115,
        (),
        ("--rounds", "1", "--share", "0.2"),
    ),
    "ab": Part(
        "bench.serving",
        "the cost of a split and a shadow",
        "serving-ab",
        140,
        ("--only", "ab", "--turns", "15"),
        ("--only", "ab", "--quick", "--turns", "2"),
        30,
    ),
    "precision": Part(
        "bench.serving",
        "requests end to end by precision",
        "serving-precision",
        75,
        ("--only", "precision"),
        ("--only", "precision", "--quick"),
        20,
    ),
    "rest": Part(
        "bench.serving.rest",
        "REST beside gRPC, FastAPI and mosec with JSON",
        "serving-rest",
        150,
        ("--peers", "--seconds", "0.6"),
        ("--peers", "--rounds", "1", "--seconds", "0.3"),
        45,
    ),
    "tracing": Part(
        "bench.serving.tracing",
        "the cost of OpenTelemetry",
        "tracing",
        60,
        ("--rounds", "3"),
        ("--rounds", "1", "--seconds", "0.3"),
    ),
    "keys": Part(
        "bench.serving.keys",
        "the cost of keys and quotas",
        "keys",
        75,
        (),
        ("--rounds", "1", "--seconds", "0.3"),
    ),
    "serving-rankers": Part(
        "bench.serving.rankers",
        "a ranker beside the bare MLP of its width, end to end",
        "serving-rankers",
        60,
        (),
        ("--rounds", "1", "--seconds", "0.3"),
    ),
    "locks": Part(
        "bench.engine_locks",
        "how long the engine's locks are held, by threads",
        "engine-locks",
        90,
        (),
        ("--rounds", "1"),
        60,
    ),
    "startup": Part(
        "bench.startup", "cold start and memory", "startup", 40, (), ("--rounds", "2"), 10
    ),
    "many-models": Part(
        "bench.many_models",
        "up to ten thousand models in one server",
        "many-models",
        150,
        (),
        ("20", "200"),
        45,
    ),
    "reload": Part(
        "bench.serving.reload",
        "live traffic while a version is loaded",
        "reload",
        35,
        ("--seconds", "20"),
        ("--seconds", "8"),
        15,
    ),
    "canaries": Part(
        "bench.serving.canaries",
        "how often a canary judges wrongly, on a quiet and on a busy server",
        "canaries",
        260,
        (),
        ("--quick",),
        55,
    ),
    "neighbours": Part(
        "bench.serving.neighbours",
        "a small model beside a large one",
        "neighbours",
        100,
        ("--rounds", "3", "--seconds", "3"),
        ("--quick",),
        25,
    ),
    "proxy": Part(
        "bench.serving.proxy", "the cost of Envoy", "proxy", 130, (), ("--quick",), 40
    ),
    "launcher": Part(
        "bench.cuda.launcher",
        "a GPU batch's cost on the host, without a GPU",
        "cuda-launcher",
        10,
        (),
        ("--rows", "1", "64"),
    ),
}  # fmt: skip
