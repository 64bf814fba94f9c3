# SPDX-License-Identifier: Apache-2.0
"""One file that can be sent back from a rented GPU: what the machine is, and what tests and benchmark found there.
`make test-gpu` and `make bench-gpu` each write their part of it. Run as `python -m bench.cuda.gpu_report`, with
arguments of pytest if other tests than those that need a GPU are wanted."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.provenance import describe_commit
from fused_mlp.kernels.profile.machine import describe_machine

REPORT = Path(__file__).parents[2] / "build" / "gpu-report.json"
PACKAGES = ("fused-mlp", "torch", "triton", "numpy")
# The name, and properties that decide the speed.
FIELDS = (
    "name,driver_version,memory.total,power.limit,clocks.max.sm,pcie.link.gen.current,pcie.link.width.current"
)


def describe_gpu() -> dict[str, object]:
    """As torch sees the current one, and as the driver sees all of them."""
    found: dict[str, object] = {"driver": _output("nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv")}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        found |= {
            "name": properties.name,
            "capability": f"sm_{properties.major}{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / (1 << 30), 1),
        }
    return found


def describe_run(command: str) -> dict[str, object]:
    """The provenance of a result."""
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "machine": describe_machine(),
        "gpu": describe_gpu(),
        "versions": {
            **versions,
            "cuda": torch.version.cuda,
            "nvcc": _output("nvcc", "--version").rpartition("\n")[2],
        },
        "commit": describe_commit(),
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
    }


def add_part(report: Path, part: str, content: dict[str, Any]) -> None:
    """Writes one part anew; the others stay as they are."""
    parts = json.loads(report.read_text()) if report.exists() else {}
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps(parts | {part: content}, indent=1) + "\n")
    print(f"{part} written to {report}: please send it back")


class Recorder:
    """A plugin of pytest's that keeps every result, with what the test printed."""

    def __init__(self) -> None:
        self.results: list[dict[str, object]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        self.results.append(
            {
                "test": report.nodeid,
                "outcome": report.outcome,
                "seconds": round(report.duration, 3),
                "printed": report.capstdout,
                "why": report.longreprtext,
                **dict(report.user_properties),
            }
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cuda.gpu_report", description=__doc__)
    parser.add_argument("--output", type=Path, default=REPORT)
    arguments, wanted = parser.parse_known_args()
    recorder = Recorder()
    code = pytest.main(wanted or ["-m", "gpu"], plugins=[recorder])
    command = " ".join(["python -m bench.cuda.gpu_report", *sys.argv[1:]])
    add_part(arguments.output, "tests", {**describe_run(command), "results": recorder.results})
    raise SystemExit(code)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _output(*command: str) -> str:
    """Empty where there is no such program."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
