# SPDX-License-Identifier: Apache-2.0
"""`python -m bench`: every benchmark one after the other, into bench/results, then the plots and the figures of the
docs. `--quick` takes about a quarter of an hour, writes into build/bench and leaves results and docs alone. Ctrl-C ends
it; `--resume` goes on with what is not done at this commit. A part that fails leaves the others running, and the exit
code is 1."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console

from bench.parts import PARTS
from bench.provenance import ROOT, describe_commit
from bench.runner import Outcome, Runner, show

QUICK_FOLDER = ROOT / "build" / "bench"


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="some of them; default: all")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="little of everything, about a quarter of an hour, into build/bench",
    )
    parser.add_argument("--resume", action="store_true", help="skip parts that are done at this commit")
    parser.add_argument("--list", action="store_true", help="name the parts, and how long each takes")
    options = parser.parse_args(given)
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]}; there are: {', '.join(PARTS)}")
    return options


def finish(quick: bool, folder: Path) -> list[Outcome]:
    """The plots, then the pages; of a quick run the figures are only tried."""
    from bench.docs.__main__ import main as write_docs
    from bench.docs.trial import failing_figures
    from bench.plots.__main__ import draw

    try:
        images = folder / "img" if quick else ROOT / "docs" / "img"
        draw(folder / "results" if quick else None, images)
        done = [Outcome("plots", "done", 0.0, images)]
    except (KeyError, FileNotFoundError) as error:
        done = [Outcome("plots", "failed", 0.0, None, f"no {error} in the results")]
    if quick:
        failing = failing_figures(folder / "results")
        said = "; ".join(f"{name}: {why}" for name, why in failing.items())
        return [*done, Outcome("figures", "failed" if failing else "done", 0.0, None, said)]
    code = write_docs(["--write"])
    return [*done, Outcome("docs", "failed" if code else "done", 0.0, ROOT / "docs", "")]


def main(given: list[str] | None = None) -> int:
    options = _arguments(given)
    console = Console(width=max(Console().width, 100))
    if options.list:
        for name, part in PARTS.items():
            console.print(f"{name:12} {part.seconds / 60:4.1f} min  {part.says}", highlight=False)
        console.print(
            f"{'all':12} {sum(part.seconds for part in PARTS.values()) / 60:4.1f} min", highlight=False
        )
        return 0
    folder = QUICK_FOLDER
    results = folder / "results" if options.quick else ROOT / "bench" / "results"
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: the part and its servers end too
        signal.signal(number, signal.default_int_handler)
    runner = Runner(console, folder, results, options.quick, describe_commit())
    outcomes = runner.run(options.parts or list(PARTS), options.resume)
    interrupted = any(outcome.state == "interrupted" for outcome in outcomes)
    if not interrupted:
        outcomes += finish(options.quick, folder)
    show(console, outcomes)
    if interrupted:
        console.print("interrupted: go on with --resume (make bench RESUME=1)")
        return 130
    return 1 if any(outcome.state == "failed" or outcome.left_out for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
