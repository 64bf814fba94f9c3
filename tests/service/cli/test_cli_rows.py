# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp predict` on files as people have them: what is read, what is refused and where, what is written."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fused_mlp.service.cli.rows.arrays import open_npz
from fused_mlp.service.cli.rows.opening import open_rows, read_rows
from fused_mlp.service.cli.rows.output import open_output
from fused_mlp.service.cli.rows.source import InputError
from fused_mlp.service.client import InputInfo
from tests.support.server import environment

ROWS = np.array([[1, 2, 3, 4], [4, 3, 2, 1]], np.float32)
COMMAND = [sys.executable, "-m", "fused_mlp.service.cli", "predict"]


def sent(scripted) -> np.ndarray:
    """All rows that the server got, in the order of their arrival."""
    return np.concatenate(
        [np.frombuffer(request.input.data, "<f4").reshape(-1, 4) for request in scripted.requests]
    )


@pytest.mark.parametrize(
    "text",
    [
        "a,b,c,d\n1,2,3,4\n4,3,2,1\n",
        '"a;b","b",c,\n1,2,3,4\n4,3,2,1\n',
        "\ufeffa,b,c,d\r\n1,2,3,4\r\n\r\n4,3,2,1\r\n",
        '"1","2", "3",4\n4,3,2,1',
        "first name\tb\tc\td\n1\t2\t3\t4\n4\t3\t2\t1\n",
        "1;2;3;4\n4;3;2;1\n",
        "1.0;2e0;+3;.4e1\n4;3;2;1\n",
        "a b c d\n1 2 3 4\n4 3 2 1\n",
        "\n \n1,2,3,4\n4,3,2,1\n\n\n",
        "[1, 2, 3, 4]\n\n[4, 3, 2, 1]\n",
        '{"input": [1, 2, 3, 4]}\n{"id": "x", "input": [4, 3, 2, 1]}',
        "[[1, 2, 3, 4],\n [4, 3, 2, 1]]",
        "[\n[1,2,3,4],[4,3,2,1]\n]",
    ],
)
def test_text_is_read_as_it_is_meant(cli, scripted, text):
    outcome = cli("predict", "tiny", "-i", "-", "--json", stdin=text.encode(), target=scripted.target)
    assert outcome.code == 0, outcome.err
    np.testing.assert_array_equal(sent(scripted), ROWS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("NA,2,3,4\n1,2,3,4\n", "line 1, column 1: expected a number, got 'NA'; write nan if"),
        ("NA,NA,NA,NA\n1,2,3,4\n", "line 1, column 1: expected a number, got 'NA'"),
        (",,,\n1,2,3,4\n", "line 1, column 1: expected a number, got an empty cell"),
        ("1,,3,4\n1,2,3,4\n", "line 1, column 2: expected a number, got an empty cell"),
        ("age,b,c,d\n1,2,3,4\n,2,3,4\n", "line 3, column 1 ('age'): expected a number, got an empty cell"),
        ("1\t\t3\t4\n", "line 1, column 2: expected a number, got an empty cell"),
        ("1,2,3,4,\n", "line 1, column 5: expected a number, got an empty cell"),
        ("1,2,3,4\n1,2,3\n", "line 2: expected 4 columns as on line 1, got 3"),
        ("a,b,c\n1,2,3,4\n", "line 2: expected 3 columns as on line 1, got 4"),
        ("1,2,3,4\n5;6;7;8\n", "line 2: expected 4 columns as on line 1, got 1"),
        ("1,5;2;3;4\n", "line 1, column 1: expected a number, got '1,5'; write decimals with a point"),
        ("1\x1f,2,3,\x1f\n", "line 1, column 4: expected a number, got an empty cell"),
        ("1_000,2,3,4\n", "line 1, column 1: expected a number, got '1_000'"),
        ("\u0661,2,3,4\n", "line 1, column 1: expected a number, got '\u0661'"),
        ("0x10,2,3,4\n", "line 1, column 1: expected a number, got '0x10'"),
        ("1,2,1e39,4\n", "line 1, column 3: expected a number that fits float32, got 1e39"),
        ("1,2,3,1e999\n", "line 1, column 4: expected a number that fits float32, got 1e999"),
        ("a,b,c,d\n", "expected rows of numbers after the header, got none"),
        ("x\n1\n\n2\n", "line 3: expected a number, got an empty line"),
        ('"x"\n1\n""\n2\n', "line 3, column 1 ('x'): expected a number, got an empty cell"),
        ('1,2,"3,4\n', "line 1: cannot be split into cells"),
        ("[1, 2, 3, 4]\n[1, 2, null, 4]\n", "line 2, column 3: expected a number, got null"),
        ("[1, 2, 3, 4]\n[1, 2, true, 4]\n", "line 2, column 3: expected a number, got true"),
        ('[1, 2, 3, 4]\n[1, "2", 3, 4]\n', 'line 2, column 2: expected a number, got "2"'),
        ("[1, 2, 3, 4]\n[1, 2, 3]\n", "line 2: expected 4 numbers as on the lines before, got 3"),
        ("[1, 2, 3, 4]\n[1, 2, 3, 1e999]\n", "line 2, column 4: expected a number that fits float32"),
        (f"[1, 2, 3, 4]\n[1, 2, 3, 1{'0' * 400}]\n", "line 2, column 4: expected a number that fits float32"),
        ("[1, 2, 3, 4]\n[]\n", "line 2: expected a list of numbers, got []"),
        ("[1, 2, 3, 4]\n[[1, 2, 3, 4]]\n", "line 2: expected a list of numbers, got [[1, 2, 3, 4]]"),
        ('{"input": 1}\n', "line 1: expected a list of numbers, got 1"),
        ('{"input": [1]}\nnot json\n', "line 2: not valid JSON"),
        ("[[1, 2, 3, null]]", "row 1, column 4: expected a number, got null"),
        ("[" * 100_000, "not valid JSON"),
        ("1,2\n" + "x" * 9000, "got 1"),
        ("1,2\n1," + "x" * 9000, "got 'xxxx"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(cli, scripted, text, says):
    outcome = cli("predict", "tiny", "-i", "-", stdin=text.encode(), target=scripted.target)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("error: stdin")
    assert says in outcome.err
    assert outcome.err.count("\n") == 1
    assert len(outcome.err) < 250
    assert not scripted.requests


def test_numbers_that_are_not_finite_are_numbers(cli, scripted):
    cli("predict", "tiny", "-i", "-", stdin="NaN,inf,-Infinity,1\n", target=scripted.target)
    cli("predict", "tiny", "-i", "-", stdin='["NaN", Infinity, "-Infinity", 1]', target=scripted.target)
    np.testing.assert_array_equal(sent(scripted), [[np.nan, np.inf, -np.inf, 1]] * 2)


def npy(array: np.ndarray, **options: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npz(**members: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **members)
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        npy(ROWS.astype(">f4")),
        npy(np.asfortranarray(ROWS)),
        npy(ROWS.astype(np.int64)),
        npy(ROWS.astype(np.uint8)),
        npz(anything=ROWS),
    ],
)
def test_arrays_of_any_layout_are_read(cli, scripted, tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    outcome = cli("predict", "tiny", "-i", tmp_path / "x", target=scripted.target)
    assert outcome.code == 0, outcome.err
    np.testing.assert_array_equal(sent(scripted), ROWS)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_floats_come_back_in_their_own_type(cli, scripted, tmp_path, dtype):
    np.save(tmp_path / "x.npy", ROWS.astype(dtype))
    assert cli("predict", "tiny", "-i", tmp_path / "x.npy", "-o", tmp_path / "y.npy", target=scripted.target)
    assert np.load(tmp_path / "y.npy").dtype == dtype


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (npy(ROWS)[:-1], "expected an array of shape (2, 4), got a file that ends early"),
        (npy(np.asfortranarray(ROWS))[:-1], "expected an array of shape (2, 4), got a file that ends early"),
        (npy(ROWS) * 2, "expected one array of shape (2, 4), got more data after it"),
        (npy(np.array([[{}]]), allow_pickle=True), "it holds pickled objects, which are not loaded"),
        (npy(np.array([["1"]])), "expected an array of numbers of up to 64 bits, got <U1"),
        (npy(ROWS.astype(complex)), "expected an array of numbers of up to 64 bits, got complex128"),
        (npy(ROWS.astype(np.longdouble)), "expected an array of numbers of up to 64 bits, got float128"),
        (npy(ROWS.astype(float) * 1e300), "row 1, column 1: expected a number that fits float32, got 1e+300"),
        (npz(a=ROWS, b=ROWS), "expected one array, got 2 (a.npy, b.npy): save the rows alone, as .npy"),
        (npz(a=ROWS)[:-9], "not a readable .npz archive"),
        (npy(np.float32(1)), "takes rows of 4 numbers, got an array of shape ()"),
        (npy(np.empty((0, 4), np.float32)), "takes rows of 4 numbers, got an array of shape (0, 4)"),
        (npy(np.empty((2, 5), np.float32)), "takes rows of 4 numbers, got an array of shape (2, 5)"),
        (npy(np.empty((3, 2, 5), np.float32)), "takes rows of 4 numbers, got an array of shape (3, 2, 5)"),
        (npy(np.empty(8, np.float32)), "takes rows of 4 numbers, got an array of shape (8,)"),
    ],
)
def test_arrays_that_cannot_be_rows_are_refused(cli, scripted, tmp_path, data, says):
    (tmp_path / "x").write_bytes(data)
    outcome = cli("predict", "tiny", "-i", tmp_path / "x", "-o", tmp_path / "y.csv", target=scripted.target)
    assert (outcome.code, outcome.out) == (1, "")
    assert says in outcome.err
    assert outcome.err.count("\n") == 1
    assert os.listdir(tmp_path) == ["x"]


def test_a_header_that_promises_too_much_takes_no_memory(cli, scripted, tmp_path):
    huge = {"descr": "<f4", "fortran_order": True, "shape": (1 << 40, 4)}
    with (tmp_path / "x").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, huge)
    outcome = cli("predict", "tiny", "-i", tmp_path / "x", target=scripted.target)
    assert "got a file that ends early" in outcome.err


def test_an_archive_that_unpacks_to_more_than_it_promises_takes_no_memory(tmp_path):
    small = npy(np.asfortranarray(ROWS))
    with (tmp_path / "x").open("wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", small + bytes(200 << 20))
    tracemalloc.start()
    try:
        with (tmp_path / "x").open("rb") as stream, pytest.raises(InputError, match="got more data after it"):
            open_npz("x", stream)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_an_archive_from_a_pipe_is_refused(scripted):
    run = subprocess.run(
        [*COMMAND, "tiny", "-i", "-", "--target", scripted.target], input=npz(a=ROWS), capture_output=True
    )
    assert b"an .npz archive cannot be read from a pipe: give it as a file" in run.stderr


@pytest.mark.parametrize(
    ("shape", "leading", "note"),
    [
        ((3, 2, 2), (3,), "an array of shape (3, 2, 2) is taken as 3 rows of 4\n"),
        ((2, 2), (), "an array of shape (2, 2) is taken as 1 row of 4\n"),
        ((5, 3, 4), (5, 3), ""),
        ((4,), (), ""),
        ((1,) * 31 + (4,), (1,) * 31, ""),
    ],
)
def test_trailing_dimensions_that_make_a_row_are_flattened(
    cli, scripted, tmp_path, expected, shape, leading, note
):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 10
    np.save(tmp_path / "x.npy", x)
    paths = ("-i", tmp_path / "x.npy", "-o", tmp_path / "y.npy")
    outcome = cli("predict", "tiny", *paths, "--json", "--request-rows", 2, target=scripted.target)
    assert outcome.err == (f"{tmp_path / 'x.npy'}: {note}" if note else "")
    wanted = expected(x.reshape(*leading, 4))
    np.testing.assert_allclose(json.loads(outcome.out)["output"], wanted, rtol=1e-6)
    assert np.load(tmp_path / "y.npy").shape == wanted.shape
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, rtol=1e-6)


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".TSV", ".json", ".jsonl", ".ndjson"])
def test_the_output_format_follows_the_name(cli, scripted, tmp_path, expected, suffix):
    path = tmp_path / f"y{suffix}"
    outcome = cli("predict", "tiny", "-i", "-", "-o", path, stdin="1,2,3,4\n4,3,2,1", target=scripted.target)
    assert outcome.code == 0, outcome.err
    np.testing.assert_allclose(read_rows(str(path)), expected(ROWS), rtol=1e-6)
    text = path.read_bytes()
    match suffix:
        case ".npy":
            assert text.startswith(b"\x93NUMPY")
        case ".json":
            assert len(json.loads(text)) == 2
        case ".jsonl" | ".ndjson":
            assert [len(json.loads(line)) for line in text.splitlines()] == [3, 3]
        case _:
            delimiter = b"\t" if suffix == ".TSV" else b","
            assert [len(line.split(delimiter)) for line in text.splitlines()] == [3, 3]


def test_json_lines_go_to_stdout(cli, scripted, expected):
    outcome = cli("predict", "tiny", "-i", "-", "-o", "-", stdin="1,2,3,4\n4,3,2,1", target=scripted.target)
    printed = [json.loads(line) for line in outcome.out.splitlines()]
    np.testing.assert_allclose(printed, expected(ROWS), rtol=1e-6)


@pytest.mark.parametrize("name", ["y", "y.txt", "y.csv.gz"])
def test_an_unknown_suffix_is_refused_before_any_work(cli, tmp_path, name):
    outcome = cli("predict", "tiny", "-i", "/no/such/file", "-o", tmp_path / name, target="127.0.0.1:1")
    assert outcome.code == 1
    assert f"{name}: expected a name that ends in .npy, .npz, .csv, .tsv, .json, .jsonl" in outcome.err
    assert outcome.err.count("\n") == 1


def test_an_output_that_cannot_be_written_is_refused_before_any_request(cli, scripted, tmp_path):
    (tmp_path / "x.csv").write_text("1,2,3,4\n")
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "link.csv").symlink_to("x.csv")
    for path, says in (
        ("folder.csv", "is not a regular file"),
        ("pipe.csv", "is not a regular file"),
        ("none/y.csv", "No such file or directory"),
        ("x.csv", "is also the input"),
        ("link.csv", "is also the input"),
    ):
        outcome = cli(
            "predict", "tiny", "-i", tmp_path / "x.csv", "-o", tmp_path / path, target=scripted.target
        )
        assert outcome.code == 1
        assert outcome.err.startswith(f"error: {tmp_path / path}: {says}")
    assert not scripted.requests
    assert (tmp_path / "x.csv").read_text() == "1,2,3,4\n"


def test_a_file_that_is_replaced_keeps_its_mode_and_its_links(cli, scripted, tmp_path):
    old, link = tmp_path / "y.csv", tmp_path / "link.csv"
    old.write_text("old\n")
    old.chmod(0o640)
    link.symlink_to(old)
    cli("predict", "tiny", "--example", "-o", link, target=scripted.target)
    assert link.is_symlink()
    assert (old.stat().st_mode & 0o777, len(old.read_text().split(","))) == (0o640, 3)


def test_many_rows_go_in_parts_and_come_back_in_order(cli, scripted, tmp_path, expected):
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    np.savetxt(tmp_path / "x.csv", rows, "%.9g", delimiter=",")
    paths = ("-i", tmp_path / "x.csv", "-o", tmp_path / "y.npy")
    outcome = cli("predict", "tiny", *paths, "--request-rows", 7, target=scripted.target)
    assert outcome.code == 0, outcome.err
    assert sorted(request.input.shape[0] for request in scripted.requests) == [1, *[7] * 7]
    # A version that is loaded in the middle must not answer the rest.
    assert [request.version for request in scripted.requests] == [0, *[7] * 7]
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected(rows), rtol=1e-6)
    assert "... and 40 more rows" in outcome.out
    assert "tiny/7 fused (eager): 8 requests, each 1.5 us queued, 2.5 us for its batch" in outcome.out


def test_json_of_many_parts_is_one_document(cli, scripted, expected):
    stdin = "1,2,3,4\n4,3,2,1\n" * 3
    outcome = cli(
        "predict", "tiny", "-i", "-", "--json", "--request-rows", 4, stdin=stdin, target=scripted.target
    )
    answer = json.loads(outcome.out)
    np.testing.assert_allclose(answer["output"], expected(np.tile(ROWS, (3, 1))), rtol=1e-6)
    assert (answer["requests"], answer["timings"]["compute_us"], answer["variant"]) == (2, 5.0, "fused")


def test_several_requests_are_in_flight(cli, scripted):
    together = threading.Barrier(4)
    answer = scripted.answer

    def wait_for_the_others(request):
        together.wait(30)
        return answer(request)

    scripted.answer = wait_for_the_others
    stdin = "1,2,3,4\n" * 8
    outcome = cli(
        "predict", "tiny", "-i", "-", "--version", 7, "--request-rows", 1, stdin=stdin, target=scripted.target
    )
    assert outcome.code == 0, outcome.err


def test_an_input_without_end_is_answered_as_it_comes(scripted, tmp_path):
    command = [*COMMAND, "tiny", "-i", "-", "-o", "-", "--target", scripted.target]
    with (
        (tmp_path / "out").open("wb") as out,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out) as process,
    ):
        assert process.stdin is not None
        written = 0
        while not scripted.arrived.is_set():
            process.stdin.write(b"1,2,3,4\n" * 1000)
            written += 1000
        process.stdin.close()
        assert process.wait(60) == 0
    assert len((tmp_path / "out").read_text().splitlines()) == written


@pytest.mark.parametrize("culprit", ["server", "input"])
def test_a_failure_in_the_middle_says_how_far_it_got(cli, scripted, tmp_path, monkeypatch, culprit):
    # The server is in this process, and must not log to the stderr that is read here.
    monkeypatch.setattr(logging.getLogger("grpc._server"), "disabled", True)
    answer = scripted.answer

    def fail_at_the_end(request):
        if request.input.shape[0] == 1:
            raise RuntimeError("the last part")
        return answer(request)

    (tmp_path / "x.csv").write_text("1,2,3,4\n" * 20 + ("1,2,3,4\n" if culprit == "server" else "1,2,3,NA\n"))
    (tmp_path / "y.csv").write_text("old")
    if culprit == "server":
        scripted.answer = fail_at_the_end
    paths = ("-i", tmp_path / "x.csv", "-o", tmp_path / "y.csv")
    outcome = cli("predict", "tiny", *paths, "--request-rows", 2, target=scripted.target)
    assert outcome.code == 1
    assert ("the last part" if culprit == "server" else "line 21, column 4") in outcome.err
    assert outcome.err.count("\n") == 1
    assert f" rows, {tmp_path / 'y.csv'} was not written\n" in outcome.err
    if culprit == "server":
        assert "; stopped after 20 rows" in outcome.err
    assert sorted(os.listdir(tmp_path)) == ["x.csv", "y.csv"]
    assert (tmp_path / "y.csv").read_text() == "old"


@pytest.mark.parametrize("limit", [64, 40_000])
@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_a_full_disk_leaves_no_half_of_a_file(scripted, tmp_path, suffix, limit):
    path = tmp_path / f"y{suffix}"
    command = [*COMMAND, "tiny", "-i", "-", "-o", path, "--request-rows", "500", "--target", scripted.target]
    run = subprocess.run(
        ["prlimit", f"--fsize={limit}", *command],  # not a function before exec: gRPC logs in a fork
        input=b"1,2,3,4\n" * 5000,
        capture_output=True,
    )
    assert (run.returncode, run.stdout) == (1, b"")
    assert run.stderr.decode().startswith(f"error: {path}: File too large")
    assert run.stderr.count(b"\n") == 1
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_half_of_a_file(scripted, tmp_path, number):
    process = subprocess.Popen(
        [*COMMAND, "stuck", "-i", "-", "-o", tmp_path / "y.csv", "--target", scripted.target],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        process.stdin.write(b"1,2,3,4\n")
        process.stdin.close()
        assert scripted.arrived.wait(60)
        assert len(os.listdir(tmp_path)) == 1  # the temporary file
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        assert process.stderr is not None
        assert process.stderr.read() == f"interrupted: {tmp_path / 'y.csv'} was not written\n".encode()
    assert not os.listdir(tmp_path)


def test_no_progress_bar_where_stderr_is_no_terminal(scripted, tmp_path):
    (tmp_path / "x.csv").write_text("1,2,3,4\n" * 40)
    run = subprocess.run(
        [*COMMAND, "tiny", "-i", tmp_path / "x.csv", "--request-rows", "2", "--target", scripted.target],
        capture_output=True,
        env=environment() | {"TERM": "xterm", "COLUMNS": "80"},
    )
    assert (run.returncode, run.stderr) == (0, b"")
    assert b"\x1b" not in run.stdout


NAMED = (
    InputInfo("age", "float", "FP32", (2,), False, (), 0, False, ()),
    InputInfo("item", "id", "INT64", (2,), True, (), 0, False, ()),
    InputInfo("word", "string", "BYTES", (), False, (), 0, False, ()),
)


@pytest.mark.parametrize(
    "text",
    [
        "other,age,item,word\n,1 2,3 4,a b\n,5 6,7,c\n",
        "word;item;age.1;age.0\na b;3 4;2;1\nc;7;6;5\n",
        '{"age": [1, 2], "item": [3, 4], "word": "a b"}\n{"age": [5, 6], "item": [7], "word": "c"}\n',
        '[{"age": [1, 2], "item": [3, 4], "word": "a b"},\n {"age": [5, 6], "item": [7], "word": "c"}]',
    ],
)
def test_named_inputs_are_read_by_column_or_key(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with open_rows(str(tmp_path / "x"), lambda: NAMED) as rows:
        (part,) = rows.parts(10, 0)
    np.testing.assert_array_equal(part["age"], [[1, 2], [5, 6]])
    np.testing.assert_array_equal(part["item"], [[3, 4], [7, -1]])
    assert part["word"].tolist() == [["a b"], ["c"]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("age,item,word\n", "expected rows with the inputs age, item, word, got none"),
        ("[]", "expected rows with the inputs age, item, word, got none"),
        ("age,item\n1 2,3\n", "expected a column word in the header, got age, item"),
        ("age,item,word\n1 2,3,a\n1,3,a\n", "line 3, input 'age': expected 2 values, got 1"),
        ("age,item,word\n1 x,3,a\n", "line 2, input 'age': expected a number, got 'x'"),
        ("age,item,word\n1 2,3.5,a\n", "line 2, input 'item': expected a whole number, got '3.5'"),
        (
            '{"age": [1, 2], "item": 3, "word": "a"}\n{"age": [1, 2]}\n',
            "line 2: expected the input 'item', got age",
        ),
        ("[1]", "row 1: expected an object with the inputs of a row, got 1"),
    ],
)
def test_named_inputs_that_cannot_be_read_are_refused(tmp_path, text, says):
    (tmp_path / "x").write_text(text)
    with (
        pytest.raises(InputError) as refused,
        open_rows(str(tmp_path / "x"), lambda: NAMED) as rows,
    ):
        list(rows.parts(10, 0))
    assert says in str(refused.value)


SEEDS = [
    npy(ROWS),
    npy(np.asfortranarray(ROWS.astype(">f8"))),
    npz(a=ROWS),
    b"a,b,c,d\n1,2,3,4\n4,3,2,1\n",
    b'"x";"y"\r\n1;2\r\n',
    b"\xef\xbb\xbf1 2\t3\n4 5 6",
    b"[1, 2]\n[3, 4]\n",
    b'{"input": [1, 2]}\n{"input": [3, 4]}',
    b'[[1, "NaN"], [3, 4]]',
]
SPLICES = st.one_of(
    st.sampled_from(
        [b",", b";", b"\t", b"\n", b"\r", b'"', b"nan", b"NA", b"1e999", b"[", b"]", b"{", b"null", b"\x1c"]
    ),
    st.binary(max_size=4),
)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.sampled_from(SEEDS),
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5), SPLICES), max_size=4),
)
def test_any_bytes_are_rows_of_one_length_or_refused_in_one_line(tmp_path_factory, seed, edits):
    data = bytearray(seed)
    for place, length, splice in edits:
        data[place : place + length] = splice
    path: Path = tmp_path_factory.getbasetemp() / "any-bytes"
    path.write_bytes(data)
    try:
        rows = read_rows(str(path))
    except InputError as error:
        assert len(str(error)) < 400
    else:
        assert rows.size
        assert rows.dtype.kind in "fiub"


FLOATS = st.floats(width=32)


@settings(max_examples=60, deadline=None)
@given(
    rows=arrays.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 5)), elements=FLOATS),
    suffix=st.sampled_from([".npy", ".csv", ".tsv", ".json", ".jsonl"]),
    step=st.integers(1, 9),
)
def test_what_is_written_reads_back_as_it_was(tmp_path_factory, rows, suffix, step):
    path: Path = tmp_path_factory.mktemp("round") / f"y{suffix}"
    with open_output(path, None) as file:
        assert file is not None
        for first in range(0, len(rows), step):
            file.write(rows[first : first + step])
    back = read_rows(str(path))
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back.reshape(rows.shape), rows)
    numbers = ~np.isnan(rows)
    np.testing.assert_array_equal(np.signbit(back.reshape(rows.shape))[numbers], np.signbit(rows)[numbers])
