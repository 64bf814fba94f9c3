# SPDX-License-Identifier: Apache-2.0
"""How long each lock of the engine is held and waited for, with more threads than cores. `python -m bench.engine_locks`
builds and runs bench/csrc/engine_locks.cpp, and keeps the median of several runs."""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

from rich.console import Console

from bench.provenance import ROOT, describe_run, write_result
from bench.summary import medians

RESULTS = Path(__file__).parent / "results" / "engine-locks.json"
BUILD = ROOT / "build" / "plain"
_REQUEST = re.compile(
    r"(?P<where>on the loop|by workers) +(?P<threads>\d+) threads, +(?P<burst>\d+) at once: "
    r"per request +(?P<locks>[\d.]+) locks, held +(?P<held_ns>[\d.]+) ns, "
    r"waited +(?P<waited_ns>[\d.]+) ns; per batch held +(?P<batch_ns>[\d.]+) ns"
)
_CHOICE = re.compile(
    r"taking a batch, +(?P<lanes>\d+) lanes ready, +(?P<connections>\d+) connections each: held +(?P<held_ns>[\d.]+) ns"
)


def build() -> Path:
    for command in (
        [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(BUILD),
            "-DCMAKE_BUILD_TYPE=Release",
            "-DFUSED_MLP_CPP_TESTS=ON",
        ],
        ["cmake", "--build", str(BUILD), "--target", "engine_locks", "--parallel"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return BUILD / "service" / "csrc" / "engine" / "tests" / "engine_locks"


def read(printed: str) -> dict[str, list[dict[str, str | float]]]:
    """`requests`: a line for each place, number of threads and burst. `choices`: for lanes and connections."""
    found = {
        name: [
            {key: value if key == "where" else float(value) for key, value in match.groupdict().items()}
            for match in pattern.finditer(printed)
        ]
        for name, pattern in (("requests", _REQUEST), ("choices", _CHOICE))
    }
    lines = sum(map(len, found.values()))
    if lines != len(printed.splitlines()):
        raise ValueError(f"expected lines of engine_locks, and understood {lines} of:\n{printed}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console(stderr=True)
    program = build()
    runs = []
    for turn in range(options.rounds):
        console.print(f"[dim]round {turn + 1}")
        runs.append(read(subprocess.run([program], capture_output=True, text=True, check=True).stdout))
    write_result(
        options.output, {**describe_run("bench.engine_locks"), "rounds": options.rounds, **medians(runs)}
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
