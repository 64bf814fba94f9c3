# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.plots` draws the plots of the docs from bench/results into docs/img, light and dark. `--check` says
which files are not as it would draw them (exit code 1)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.docs.registry import RESULTS, ROOT, Results
from bench.plots import kernels, overload, precision, serving
from bench.plots.theme import Theme, as_svg

IMAGES = ROOT / "docs" / "img"
THEMES = ("light", "dark")
# By name: the plot, and its title for those who cannot see it.
PLOTS: dict[str, tuple[Callable[[Results, Theme], Figure], str]] = {
    "kernels": (kernels.draw, "Speed relative to eager PyTorch by batch size"),
    "serving": (serving.draw_rates, "Requests per second by system"),
    "latency": (serving.draw_latencies, "Latency percentiles by system"),
    "precision": (precision.draw, "Error against speed by precision"),
    "overload": (overload.draw, "Goodput against offered load"),
}


def pictures(results: Results) -> dict[str, str]:
    """File name to SVG."""
    drawn = {}
    for name, (plot, title) in PLOTS.items():
        for theme in map(Theme, THEMES):
            with rc_context(theme.settings):
                drawn[f"{name}-{theme.name}.svg"] = as_svg(plot(results, theme), title)
    return drawn


def draw(results: Path | None, images: Path) -> list[Path]:
    """Draws what the results have; results that a folder lacks are taken from those stored."""
    from bench.docs.trial import Overlay

    images.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, text in pictures(Overlay(results) if results else Results()).items():
        (images / name).write_text(text)
        drawn.append(images / name)
    return drawn


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.plots", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--output", type=Path, default=IMAGES, help="folder of the SVG files")
    parser.add_argument("--check", action="store_true", help="draw nothing; fail where a file would change")
    options = parser.parse_args(given)
    if options.check:
        stale = [
            name
            for name, text in pictures(Results(options.results)).items()
            if not (options.output / name).exists() or (options.output / name).read_text() != text
        ]
        print("\n".join(f"{name}: not as drawn from the results" for name in stale))
        return 1 if stale else 0
    for path in draw(options.results, options.output):
        print(f"{path} ({path.stat().st_size / 1e3:.0f} kB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
