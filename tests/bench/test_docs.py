# SPDX-License-Identifier: Apache-2.0
"""The figures of the pages are what bench.docs writes from the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.docs.__main__ import main
from bench.docs.figures.kernels import slower_text
from bench.docs.markdown import clean_command, number, provenance, span, table
from bench.docs.pages import PageError, names_in, pages, rewrite
from bench.docs.registry import FIGURES, ROOT, Results


def test_every_page_is_as_it_would_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--check"])
    assert code == 0, capsys.readouterr().out + "run python -m bench.docs --write"


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_figure_is_made_of_the_stored_results(name: str) -> None:
    text = FIGURES[name](Results())
    assert text.strip()
    assert "nan" not in text
    assert FIGURES[name].__doc__


def test_no_table_is_on_two_pages() -> None:
    placed = [
        name
        for page in pages(ROOT)
        for name in names_in(page.read_text())
        if "|---" in FIGURES[name](Results())
    ]
    assert len(placed) == len(set(placed)), sorted(name for name in placed if placed.count(name) > 1)


def test_what_is_between_the_markers_is_replaced_and_nothing_else() -> None:
    page = "before\n<!-- figure: environment -->\nold\n<!-- /figure -->\nafter\n"
    written = rewrite(page, Results())
    assert written.startswith("before\n<!-- figure: environment -->\n\nMachine: ")
    assert written.endswith("\n\n<!-- /figure -->\nafter\n")
    assert rewrite(written, Results()) == written


def test_unknown_and_unclosed_figures_are_refused_with_the_names_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"no figure is called nothing; there are: .*kernels-table"):
        rewrite("<!-- figure: nothing -->\n<!-- /figure -->", Results())
    with pytest.raises(PageError, match="opened and not closed"):
        rewrite("<!-- figure: environment -->\n", Results())


def test_check_fails_with_the_difference_and_write_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("nothing\n")
    page = tmp_path / "docs" / "page.md"
    page.write_text("<!-- figure: reload-summary -->\n12 ms\n<!-- /figure -->\n")
    assert main(["--check", "--root", str(tmp_path)]) == 1
    assert "-12 ms" in capsys.readouterr().out
    assert main(["--write", "--root", str(tmp_path)]) == 0
    assert main(["--check", "--root", str(tmp_path)]) == 0
    assert "12 ms\n" not in page.read_text()


def test_provenance_names_machine_date_commit_and_the_command_without_its_files() -> None:
    result = {
        "machine": {"cpu": "X", "cores": 4, "python": "3.12"},
        "date": "2026-01-02",
        "commit": "abc",
        "command": "python -m bench.kernels --realtime --resume --output a.json --plot b.svg",
    }
    assert provenance(result) == (
        "<small>X, 4 cores, Python 3.12; 2026-01-02, commit abc, `python -m bench.kernels --realtime`</small>"
    )
    assert clean_command("python -m a --rounds 3") == "python -m a --rounds 3"


def test_points_that_are_lost_name_their_threads_where_there_are_several_counts() -> None:
    def cell(threads: int, fused: float) -> dict[str, Any]:
        return {"shape": "8x2", "batch": 1, "threads": threads, "best_us": {"fused": fused, "eager": 8.5}}

    one, two = cell(1, 5.0), cell(2, 10.0)
    assert slower_text([one, two]) == "at 1 of 2 points: 8x2 at batch 1 on 2 threads (0.85x)"
    assert slower_text([two]) == "at 1 of 1 points: 8x2 at batch 1 (0.85x)"
    assert slower_text([one]) == "at none of 1 points"


def test_numbers_have_three_digits_and_ranges_collapse() -> None:
    assert [number(value) for value in (1.23, 99.94, 1234.5, None)] == ["1.2", "99.9", "1,234", ""]
    assert [span(3, 5), span(5, 5)] == ["3 to 5", "5"]
    assert table(["a", "b"], [["x", ""]]) == "| a | b |\n|---|---:|\n| x | |"
