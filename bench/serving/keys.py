# SPDX-License-Identifier: Apache-2.0
"""The server's cost of keys: one server without a file of keys and one with a thousand callers, the demo model (the
cheapest requests), 128 outstanding, in turns. Run as `python -m bench.serving.keys`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.docs.figures.serving import keys_table
from bench.docs.registry import Results
from bench.provenance import describe_run, h2load_version, write_result
from bench.serving.load import LOADS, Load, measure, request_for, write_frame
from bench.serving.systems import System, make_repository, service
from bench.summary import medians
from fused_mlp.service.access.key_file import MAX_CALLERS, new_key

RESULTS = Path(__file__).resolve().parents[1] / "results" / "keys.json"
MODEL, OUTSTANDING = "digits", 128
QUOTAS = {"requests_per_s": 1e9, "rows_per_s": 1e9, "max_in_flight": 1_000_000}
OFF, OFF_SENT = "no keys", "no keys, but one is sent"
ON, BEARER, LIMITED = "a key", "a key as authorization: Bearer", "a key with all quotas"


def write_keys(path: Path) -> dict[str, str]:
    """The file of the server; a caller without quotas and one with all of them, among many."""
    made = {name: new_key() for name in (ON, LIMITED, *(f"caller-{i}" for i in range(MAX_CALLERS - 2)))}
    callers = [
        {"name": name.replace(" ", "-"), "sha256": digest, **(QUOTAS if name == LIMITED else {})}
        for name, (_, digest) in made.items()
    ]
    path.write_text(json.dumps({"callers": callers}))
    return {name: made[name][0] for name in (ON, LIMITED)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run of h2load")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console(stderr=True)
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in (OFF, OFF_SENT, ON, BEARER, LIMITED)}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        repository = make_repository(Path(folder) / "models")
        keys = write_keys(Path(folder) / "keys.json")
        off = stack.enter_context(service("off", repository, False, front="native"))
        settings = {"keys": Path(folder) / "keys.json"}
        on = stack.enter_context(service("on", repository, False, front="native", **settings))
        frame = write_frame(Path(folder) / "frame", request_for(MODEL, 1).SerializeToString())
        # h2load sends authorization as a literal each time, other headers as an index, as stock gRPC clients do.
        cases: dict[str, tuple[System, tuple[str, ...]]] = {
            OFF: (off, ()),
            ON: (on, (f"x-api-key: {keys[ON]}",)),
            BEARER: (on, (f"authorization: Bearer {keys[ON]}",)),
            OFF_SENT: (off, (f"x-api-key: {keys[ON]}",)),
            LIMITED: (on, (f"x-api-key: {keys[LIMITED]}",)),
        }
        for turn in range(options.rounds):
            for name, (server, headers) in cases.items():
                load = Load(frame, *LOADS[OUTSTANDING], headers=headers).with_answers_of(server)
                sample = measure(server, load, options.seconds)
                samples[name].append(sample.as_dict())
                console.print(
                    f"[dim]round {turn + 1}, {name}: {sample.rate:,.0f} req/s, {sample.cpu_us:.2f} us"
                )
    result = {
        **describe_run("bench.serving.keys", ("grpcio",), {"h2load": h2load_version()}),
        "model": MODEL,
        "outstanding": OUTSTANDING,
        "callers": MAX_CALLERS,
        "cases": {name: medians(rounds) for name, rounds in samples.items()},
    }
    write_result(options.output, result)
    print(keys_table(Results(fresh={"keys": result})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
