# SPDX-License-Identifier: Apache-2.0
"""`python -m bench`: parts run one after the other, failures leave the others running, and a run can be resumed."""

from __future__ import annotations

import io
import json
import signal
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from bench import __main__ as command
from bench.parts import PARTS, Part
from bench.runner import Outcome, Runner, show

SCRIPT = """
import argparse, json, sys
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("--output", type=Path)
parser.add_argument("--fail", action="store_true")
parser.add_argument("--wait", action="store_true")
parser.add_argument("--leave-out", action="store_true")
options = parser.parse_args()
print("working", flush=True)
if options.wait:
    import signal
    print("waiting", flush=True)
    signal.pause()
if options.fail:
    sys.exit("no such peer")
options.output.write_text(json.dumps({"left_out": {"Triton": "no wheel"} if options.leave_out else {}}))
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Part]:
    (tmp_path / "fake_part.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return {
        "good": Part("fake_part", "", "good", 1),
        "bad": Part("fake_part", "", "bad", 1, quick=("--fail",)),
        "partial": Part("fake_part", "", "partial", 1, quick=("--leave-out",)),
        "endless": Part("fake_part", "", "endless", 1, quick=("--wait",)),
    }


def runner(tmp_path: Path, parts: dict[str, Part], commit: str = "abc") -> Runner:
    console = Console(file=io.StringIO(), width=120)
    return Runner(console, tmp_path, tmp_path / "results", quick=True, commit=commit, parts=parts)


def test_a_part_that_fails_says_why_in_one_line_and_the_others_go_on(
    tmp_path: Path, parts: dict[str, Part]
) -> None:
    bad, good, partial = runner(tmp_path, parts).run(["bad", "good", "partial"], resume=False)
    assert (bad.state, good.state, partial.state) == ("failed", "done", "done")
    assert bad.said.startswith("no such peer")
    assert good.file == tmp_path / "results" / "good.json"
    assert partial.left_out == {"Triton": "no wheel"}
    assert "working" in (tmp_path / "logs" / "bad.log").read_text()


def test_resume_skips_what_is_done_at_this_commit_and_nothing_else(
    tmp_path: Path, parts: dict[str, Part]
) -> None:
    runner(tmp_path, parts).run(["good", "bad"], resume=False)
    again = runner(tmp_path, parts).run(["good", "bad"], resume=True)
    assert [each.state for each in again] == ["skipped", "failed"]
    (other,) = runner(tmp_path, parts, commit="def").run(["good"], resume=True)
    assert other.state == "done"
    (tmp_path / "results" / "good.json").unlink()
    (lost,) = runner(tmp_path, parts, commit="def").run(["good"], resume=True)
    assert lost.state == "done"


def test_an_interrupt_ends_the_part_and_the_run(tmp_path: Path, parts: dict[str, Part]) -> None:
    found = runner(tmp_path, parts)
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def interrupt_when_it_waits() -> None:
        while found._last_line != "waiting":
            pass
        signal.pthread_kill(main_thread, signal.SIGINT)

    thread = threading.Thread(target=interrupt_when_it_waits)
    thread.start()
    outcomes = found.run(["endless", "good"], resume=False)
    thread.join()
    assert [(each.part, each.state) for each in outcomes] == [("endless", "interrupted")]
    assert not (tmp_path / "results" / "good.json").exists()


def test_the_table_at_the_end_has_part_state_time_and_file(tmp_path: Path) -> None:
    text = io.StringIO()
    outcomes = [
        Outcome("kernels", "done", 65.0, tmp_path / "kernels.json"),
        Outcome("serving", "done", 5.0, None, left_out={"Triton": "no wheel"}),
        Outcome("proxy", "failed", 1.0, None, "no Envoy"),
    ]
    show(Console(file=text, width=200), outcomes)
    assert "1:05" in text.getvalue()
    assert "kernels.json" in text.getvalue()
    assert "serving without Triton: no wheel" in text.getvalue()
    assert "proxy failed: no Envoy" in text.getvalue()


def test_a_part_that_there_is_not_is_refused_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        command.main(["serving", "nothing"])
    assert "no part is called nothing; there are: kernels, int8," in capsys.readouterr().err


def test_list_names_every_part_and_all_take_at_most_75_minutes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in PARTS)
    assert sum(part.seconds for part in PARTS.values()) <= 75 * 60


def test_every_part_has_a_result_of_its_own_and_a_module() -> None:
    assert len({part.result for part in PARTS.values()}) == len(PARTS)
    for part in PARTS.values():
        assert part.command(quick=False)[:2] == ["-m", part.module]
        assert (
            sys.modules.get(part.module)
            or (Path(*part.module.split(".")).with_suffix(".py").exists())
            or Path(*part.module.split(".")).is_dir()
        )


def test_results_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    from bench.provenance import write_result

    path = tmp_path / "new" / "result.json"
    write_result(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    with pytest.raises(TypeError):
        write_result(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}


def test_provenance_has_machine_versions_commit_command_and_date(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.provenance import describe_run

    monkeypatch.setattr("sys.argv", ["x", "--engines", "ONNX Runtime"])
    monkeypatch.delenv("FUSED_MLP_ISA", raising=False)
    found = describe_run("bench.kernels", ("numpy", "no-such-package"), {"h2load": "1"})
    assert set(found) == {"machine", "versions", "commit", "command", "date"}
    assert found["command"] == "python -m bench.kernels --engines 'ONNX Runtime'"
    assert {"fused-mlp", "numpy", "h2load"} == set(found["versions"])
    assert {"cpu", "cores", "isa", "python"} <= set(found["machine"])
