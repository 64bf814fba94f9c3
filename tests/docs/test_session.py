# SPDX-License-Identifier: Apache-2.0
"""Running a page: what its blocks share, what they get, and what a failure tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.page import read_page
from tests.docs.session import BlockFailed, run_page


def run(text: str, folder: Path) -> None:
    run_page(read_page("docs/made_up.md", text), folder)


def failure(text: str, folder: Path) -> str:
    with pytest.raises(BlockFailed) as failed:
        run(text, folder)
    return str(failed.value)


def test_blocks_share_a_folder_and_python_blocks_a_namespace(tmp_path: Path):
    run(
        "```sh\necho 7 >number\n```\n"
        "```python\nfrom pathlib import Path\n\nnumber = int(Path('number').read_text())\n```\n"
        "```python\nimport pickle\n\n\nclass Net:\n    pass\n\n\npickle.dumps(Net())\nassert number == 7\n```\n"
        "<!-- run: alone -->\n```python\nassert 'number' not in globals()\n```\n"
        "<!-- not run: would fail -->\n```sh\nfalse\n```\n"
        "<!-- run: fails -->\n```sh\nfalse\n```\n"
        "<!-- run: fails -->\n```python\nraise SystemExit(3)\n```\n",
        tmp_path,
    )


def test_failing_command_is_told_with_page_line_code_and_output(tmp_path: Path):
    told = failure("# Title\n\n```sh\necho said >&2\nfalse | true\n```\n", tmp_path)
    assert told.startswith("docs/made_up.md:4: exit status 1\necho said >&2\n")
    assert told.endswith("--- output\nsaid\n")


def test_failing_python_is_told_with_the_line_of_the_page(tmp_path: Path):
    told = failure("```python\nprint('said')\nx = 1\n```\n\n```python\n\nassert x == 2\n```\n", tmp_path)
    assert told.startswith("docs/made_up.md:7: failed\n")
    assert 'docs/made_up.md", line 8, in <module>' in told
    assert "said" not in told  # of the first block
    assert "namespace.py" not in told


def test_python_that_ends_its_process_fails(tmp_path: Path):
    assert "docs/made_up.md:2: failed" in failure("```python\nimport os\n\nos._exit(0)\n```\n", tmp_path)


def test_success_where_a_failure_is_expected_fails(tmp_path: Path):
    assert "docs/made_up.md:3: exit status 0" in failure("<!-- run: fails -->\n```sh\ntrue\n```\n", tmp_path)
    (tmp_path / "again").mkdir()
    told = failure("<!-- run: fails -->\n```python\npass\n```\n", tmp_path / "again")
    assert "docs/made_up.md:3: succeeded" in told


def test_ports_of_the_page_are_free_ones_everywhere(tmp_path: Path):
    run(
        "```sh\n"
        'test 8001 != "80""01"\n'
        'test "$FUSED_MLP_TARGET" = 127.0.0.1:8001\n'
        'test "$FUSED_MLP_TARGET_ADMIN" = 127.0.0.1:8003\n'
        'test "$FUSED_MLP_REST_PORT:$FUSED_MLP_GRPC_PORT:$FUSED_MLP_METRICS_PORT" = 8000:8001:8002\n'
        'test 18001 = "180""01"\n'
        "```\n"
        "```python\nimport os\n\nassert os.environ['FUSED_MLP_GRPC_PORT'] == str(8001)\n```\n",
        tmp_path,
    )


def test_page_with_a_server_can_call_it_and_replace_it(tmp_path: Path):
    run(
        "<!-- server: --split 0.25 -->\n\n"
        "```sh\ncurl -fsS localhost:8002/status.json | grep 0.25\n```\n"
        "<!-- run: background -->\n```sh\nfused-mlp serve --split 0.75\n```\n"
        "```sh\ncurl -fsS localhost:8002/status.json | grep 0.75\n```\n"
        "```python\nfrom fused_mlp import Client\n\n"
        "with Client('localhost:8001') as client:\n    assert client.models()\n```\n",
        tmp_path,
    )


def test_server_that_does_not_start_is_told_with_its_words(tmp_path: Path):
    told = failure("<!-- run: background -->\n```sh\nfused-mlp serve --split 7\n```\n", tmp_path)
    assert told.startswith("docs/made_up.md:3: the server was never ready")
    assert "split" in told.partition("--- output")[2]


def test_other_programs_in_the_background_are_waited_for_by_port(tmp_path: Path):
    run(
        "<!-- run: background 8000 -->\n```sh\npython -m http.server --bind 127.0.0.1 8000\n```\n"
        "```sh\ncurl -fsS http://localhost:8000/\n```\n",
        tmp_path,
    )
    (tmp_path / "again").mkdir()
    told = failure("<!-- run: background 8000 -->\n```sh\necho no >&2\n```\n", tmp_path / "again")
    assert told.startswith("docs/made_up.md:3: port 8000 was never open")
    assert told.endswith("no\n")


def test_page_starts_in_a_copy_of_the_folder_it_names_after_its_setup(tmp_path: Path):
    run(
        "<!-- folder: tests/docs -->\n<!-- setup: tests/docs/page.py -->\n\n"
        "```sh\ntest -f test_session.py\ntouch mine\n```\n",
        tmp_path,
    )
    assert not Path(__file__).with_name("mine").exists()
    (tmp_path / "again").mkdir()
    run("<!-- folder: . -->\n\n```sh\ntest -f tests/docs/test_session.py\n```\n", tmp_path / "again")


def test_setup_that_fails_is_told(tmp_path: Path):
    told = failure("<!-- setup: README.md -->\n\n```sh\ntrue\n```\n", tmp_path)
    assert told.startswith("docs/made_up.md: the setup README.md failed")


def test_page_that_is_not_run_is_not_run(tmp_path: Path):
    run("<!-- page: not run: needs root -->\n\n```sh\nfalse\n```\n", tmp_path)
