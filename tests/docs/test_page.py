# SPDX-License-Identifier: Apache-2.0
"""Reading a page: what blocks and directives mean, and what is refused, with file and line."""

from __future__ import annotations

import pytest

from tests.docs.page import Mistake, Page, check_source, read_page


def page(text: str) -> Page:
    return read_page("docs/made_up.md", text)


def test_blocks_have_language_line_and_code():
    read = page("# Title\n\n```sh\necho a\n```\n\n* in a list:\n\n  ```python\n  if 1:\n      x = 2\n  ```\n")
    assert [(block.language, block.line, block.code) for block in read.blocks] == [
        ("sh", 4, "echo a\n"),
        ("python", 10, "if 1:\n    x = 2\n"),
    ]
    assert all(block.is_run for block in read.blocks)


def test_directives_above_a_block_belong_to_it():
    read = page(
        "<!-- not run: needs a GPU -->\n```sh\nx\n```\n"
        "<!-- run: fails -->\n```sh\nx\n```\n"
        "<!-- from: LICENSE -->\n<!-- not run: no program -->\n```go\nx\n```\n"
        "<!-- run: background 9000 -->\n```sh\nx\n```\n"
    )
    assert [block.not_run for block in read.blocks] == ["needs a GPU", "", "no program", ""]
    assert [block.mode for block in read.blocks] == ["", "fails", "", "background"]
    assert [block.source for block in read.blocks] == ["", "", "LICENSE", ""]
    assert read.blocks[3].port == "9000"


def test_directives_of_the_page():
    read = page(
        "<!-- server: --split 0.1 -->\n<!-- folder: examples -->\n<!-- setup: README.md -->\n\ntext\n"
    )
    assert (read.server, read.folder, read.setups) == ("--split 0.1", "examples", ("README.md",))
    assert page("<!-- server -->\n").server == ""
    assert page("").server is None
    assert page("<!-- page: not run: needs root -->\n\n```json\n{}\n```\n").not_run == "needs root"


def test_comments_in_pairs_enclose_generated_text():
    assert not page("<!-- figure: speed -->\n<!-- /figure -->\n<!-- limits -->\n\n<!-- /limits -->\n").blocks


def test_comments_inside_a_block_are_its_text():
    assert page("```text\n<!-- whatever -->\n```\n").blocks[0].code == "<!-- whatever -->\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```\nx\n```", ":1: a block without language"),
        ("\n    indented\n", ":2: a block by indentation"),
        ("```bash\nx\n```", ":1: unknown language 'bash'; write sh"),
        ("```pycon\nx\n```", ":1: unknown language 'pycon'; write python"),
        ("```brainfuck\nx\n```", ":1: unknown language 'brainfuck'"),
        ("```json\n{}\n```", ":2: a block of json is not run: say"),
        ("<!-- not run: -->\n```sh\nx\n```", ":1: 'not run' without a reason"),
        ("<!-- run: quickly -->\n```sh\nx\n```", ":1: unknown directive 'run: quickly'"),
        ("<!-- run: fails 80 -->\n```sh\nx\n```", ":1: unknown directive 'run: fails 80'"),
        ("<!-- run: alone -->\n```sh\nx\n```", ":1: 'run: alone' above a block of sh"),
        ("<!-- run: fails -->\n```text\nx\n```", ":1: 'run: fails' above a block of text"),
        ("<!-- sever -->\n", ":1: unknown directive 'sever'"),
        ("<!-- run: fails -->\n\n```sh\nx\n```", ":1: 'run: fails' stands directly above no block"),
        ("```sh\nx\n```\n\n<!-- server -->\n", ":5: 'server' is for the whole page"),
        ("<!-- server -->\n```sh\nx\n```", ":1: 'server' is for the whole page: leave an empty line"),
        ("<!-- page: slow -->\n", ":1: expected 'page: not run: REASON'"),
        ("<!-- setup: tests/nothing.py -->\n", ":1: 'setup: tests/nothing.py' names nothing"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(text: str, complaint: str):
    with pytest.raises(Mistake) as refusal:
        page(text)
    assert str(refusal.value).startswith(f"docs/made_up.md{complaint}")


def test_block_with_a_source_is_whole_lines_of_that_file():
    def block(code: str, source: str = "tests/docs/page.py") -> None:
        (read,) = page(f"<!-- from: {source} -->\n```python\n{code}\n```\n").blocks
        check_source(read)

    block("from __future__ import annotations\n\nimport re")
    with pytest.raises(Mistake, match=r"made_up\.md:3: .* byte for byte"):
        block("rom __future__ import annotations")
    with pytest.raises(Mistake, match=r"made_up\.md:3: .* byte for byte"):
        block("from __future__")
    with pytest.raises(Mistake, match=r"made_up\.md:3: from: no/such/file does not exist"):
        block("x", "no/such/file")
