# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.docs --write` writes the figures of README.md and docs/ from bench/results, `--check` says which
pages are not as it would write them (exit code 1), `--list` names the figures, `--show NAME` prints one."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from bench.docs import figures  # noqa: F401 - registers them
from bench.docs.pages import PageError, names_in, pages, rewrite
from bench.docs.registry import FIGURES, RESULTS, ROOT, Results

SHOWN_LINES = 20


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.docs", description=__doc__)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--write", action="store_true", help="rewrite the pages")
    wanted.add_argument("--check", action="store_true", help="fail where a page would change")
    wanted.add_argument("--list", action="store_true", help="every figure, what it shows, and its pages")
    wanted.add_argument("--show", metavar="NAME", choices=sorted(FIGURES), help="print one figure")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result files")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of README.md and docs")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    options = _arguments(given)
    results = Results(options.results)
    if options.show:
        print(FIGURES[options.show](results))
        return 0
    if options.list:
        _list(options.root)
        return 0
    changed = 0
    for page in pages(options.root):
        if not page.exists():
            continue
        text = page.read_text()
        try:
            wanted = rewrite(text, results)
        except PageError as error:
            print(f"{page.relative_to(options.root)}: {error}", file=sys.stderr)
            return 1
        if wanted == text:
            continue
        changed += 1
        print(
            f"{page.relative_to(options.root)}: {'written' if options.write else 'not as written from results'}"
        )
        if options.write:
            page.write_text(wanted)
        else:
            lines = difflib.unified_diff(text.splitlines(), wanted.splitlines(), lineterm="", n=0)
            print("\n".join(list(lines)[:SHOWN_LINES]))
    if options.check and changed:
        print("run python -m bench.docs --write", file=sys.stderr)
    return 1 if options.check and changed else 0


def _list(root: Path) -> None:
    used: dict[str, list[str]] = {name: [] for name in FIGURES}
    for page in pages(root):
        for name in names_in(page.read_text()):
            used.setdefault(name, []).append(str(page.relative_to(root)))
    for name, where in used.items():
        says = (FIGURES[name].__doc__ or "").strip().partition("\n")[0] if name in FIGURES else "unknown"
        print(f"{name:24} {says} [{', '.join(where) or 'on no page'}]")


if __name__ == "__main__":
    sys.exit(main())
