# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp predict`: what goes in, what is shown, and what an error says."""

from __future__ import annotations

import json

import numpy as np
import pytest

ROWS = np.array([[1, 2, 3, 4], [4, 3, 2, 1]], np.float32)


def test_example_shows_the_labels_most_likely_first(cli, scripted, expected):
    outcome = cli("predict", "tiny", "--example", target=scripted.target)
    assert outcome.code == 0, outcome.err
    labels = ["ant", "bee", "[bold]cat[/bold]"]
    probabilities = expected([1, 2, 3, 4])
    ranked = [labels[index] for index in np.argsort(-probabilities)]
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ranked  # text from a server is never read as markup
    assert f"{probabilities.max():.2%}" in lines[2]
    assert "tiny/7 fused (eager): 1.5 us queued, 2.5 us for a batch of 1 row" in lines[5]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in outcome.out


@pytest.mark.parametrize("form", ["npy", "json", "csv", "header", "spaces", "semicolons"])
def test_rows_are_recognised_by_their_content(cli, scripted, tmp_path, form, expected):
    path = tmp_path / "rows"
    match form:
        case "npy":
            with path.open("wb") as file:
                np.save(file, ROWS)
        case "json":
            path.write_text(json.dumps(ROWS.tolist()))
        case "csv":
            path.write_text("1,2,3,4\n4,3,2,1\n")
        case "header":
            path.write_text("\ufeffa,b,c,d\n1, 2, 3, 4\n\n4, 3, 2, 1\n")
        case "spaces":
            path.write_text(" 1 2\t3 4\r\n4 3 2 1")
        case "semicolons":
            path.write_text("1;2;3;4\n4;3;2;1")
    from_file = cli("predict", "tiny", "--input", path, "--json", target=scripted.target)
    from_stdin = cli(
        "predict", "tiny", "--input", "-", "--json", stdin=path.read_bytes(), target=scripted.target
    )
    for outcome in (from_file, from_stdin):
        assert outcome.code == 0, outcome.err
        np.testing.assert_allclose(json.loads(outcome.out)["output"], expected(ROWS), rtol=1e-6)


def test_json_has_everything(cli, scripted):
    outcome = cli("predict", "tiny", "--example", "--json", "--variant", "unfused", target=scripted.target)
    answer = json.loads(outcome.out)
    assert answer.keys() == {"model", "version", "variant", "strategy", "request_id", "timings", "output"}
    assert (answer["model"], answer["version"], answer["variant"]) == ("tiny", 7, "unfused")
    assert answer["timings"] == {"queue_us": 1.5, "compute_us": 2.5, "batch_rows": 1}
    assert len(answer["output"]) == 3


def test_json_stays_json_when_the_output_is_not_finite(cli, scripted):
    outcome = cli("predict", "tiny", "-i", "-", "--json", stdin="nan 1 2 3", target=scripted.target)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(outcome.out, parse_constant=refuse)["output"] == [["NaN", "NaN", "NaN"]]


def test_many_rows_are_cut_and_saved_whole(cli, scripted, tmp_path, expected):
    rows = np.linspace(-1, 1, 48, dtype=np.float32).reshape(12, 4)
    np.save(tmp_path / "x.npy", rows)
    outcome = cli(
        "predict",
        "tiny",
        "-i",
        tmp_path / "x.npy",
        "-o",
        tmp_path / "y.npy",
        "--top",
        2,
        target=scripted.target,
    )
    assert outcome.code == 0, outcome.err
    assert "... and 2 more rows" in outcome.out
    assert "#2" in outcome.out
    assert "#3" not in outcome.out
    assert outcome.out.endswith(f"written: {tmp_path / 'y.npy'}\n")
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected(rows), rtol=1e-6)


def test_all_outputs_are_printed_by_name(cli, scripted, expected):
    asked = ["predict", "tiny", "-i", "-", "--output-name", "*", "--request-rows", 1]
    stdin = "1 2 3 4\n4 3 2 1\n"
    y = expected(ROWS)
    lines = cli(*asked, "-o", "-", stdin=stdin, target=scripted.target).out.splitlines()
    rows = [json.loads(line) for line in lines]
    np.testing.assert_allclose([row["pi"] for row in rows], y, rtol=1e-6)
    np.testing.assert_allclose([row["v"] for row in rows], y[:, 0], rtol=1e-6)
    answer = json.loads(cli(*asked, "--json", stdin=stdin, target=scripted.target).out)
    assert answer["outputs"].keys() == {"pi", "v"}
    np.testing.assert_allclose(answer["outputs"]["pi"], y, rtol=1e-6)
    np.testing.assert_allclose(answer["outputs"]["v"], y[:, 0], rtol=1e-6)
    assert not answer.keys() & {"output", "output_name"}
    shown = cli(*asked, stdin=stdin, target=scripted.target).out.splitlines()
    assert {" pi", " v"} <= {line.rstrip() for line in shown}


def test_all_outputs_are_written_where_the_file_can_hold_them(cli, scripted, tmp_path, expected):
    np.save(tmp_path / "x.npy", ROWS.reshape(2, 1, 4))

    def write(name, output_name="*"):
        asked = ["predict", "tiny", "-i", tmp_path / "x.npy", "-o", tmp_path / name]
        return cli(*asked, "--output-name", output_name, "--request-rows", 1, target=scripted.target)

    y = expected(ROWS)
    assert write("y.json").code == 0
    rows = json.loads((tmp_path / "y.json").read_text())
    np.testing.assert_allclose([row["v"] for row in rows], y[:, 0], rtol=1e-6)
    assert write("y.npz").code == 0
    with np.load(tmp_path / "y.npz") as arrays:
        assert {name: array.shape for name, array in arrays.items()} == {"pi": (2, 1, 3), "v": (2, 1)}
        np.testing.assert_allclose(arrays["pi"][:, 0], y, rtol=1e-6)
    assert write("one.npz", "").code == 0
    with np.load(tmp_path / "one.npz") as arrays:
        np.testing.assert_allclose(arrays["output"][:, 0], y, rtol=1e-6)
    for name in ("y.csv", "y.tsv", "y.npy"):
        refused = write(name)
        assert refused.code == 1
        assert "holds one output; give --output-name a name" in refused.err
        assert not (tmp_path / name).exists()


def test_version_is_passed_on(cli, scripted):
    cli("predict", "tiny", "-i", "-", "--version", 7, "--json", stdin="1 2 3 4", target=scripted.target)
    assert scripted.requests[0].version == 7


@pytest.mark.parametrize(
    ("stdin", "says"),
    [
        ("", "stdin is empty: expected rows of numbers"),
        ("1 2 x 4", "stdin, line 1, column 3: expected a number, got 'x'"),
        ("1 2\n3", "stdin, line 2: expected 2 columns as on line 1, got 1"),
        ("[[1, 2], [3]]", "expected JSON rows of numbers, all of one length"),
        ("[1, 2", "not valid JSON"),
        ('{"a": 1}', 'line 1: expected a row as [1, 2] or {"input": [1, 2]}, got {"a": 1}'),
        (b"\x93NUMPY\x01\x00", "not a readable .npy array"),
        (b"\xff\xfe\x00", "got other binary data"),
    ],
)
def test_bad_input_is_one_line_that_says_where(cli, scripted, stdin, says):
    outcome = cli("predict", "tiny", "-i", "-", stdin=stdin, target=scripted.target)
    assert outcome.code == 1
    assert outcome.err.startswith("error: stdin")
    assert says in outcome.err
    assert outcome.err.count("\n") == 1
    assert not scripted.requests


def test_a_pickled_array_is_refused(cli, scripted, tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    outcome = cli("predict", "tiny", "-i", tmp_path / "x.npy", target=scripted.target)
    assert outcome.code == 1
    assert "not a readable .npy array" in outcome.err


@pytest.mark.parametrize(
    "args",
    [[], ["--example", "-i", "-"], ["--example", "--variant", "fast"], ["--example", "--version", "0"]],
)
def test_wrong_usage_exits_with_2(cli, args):
    assert cli("predict", "tiny", *args).code == 2


def test_errors_say_what_to_do(cli, scripted, fail):
    unknown = cli("predict", "nope", "--example", target=scripted.target)
    assert unknown.code == 1
    assert unknown.err == (
        f"error: model 'nope' is not served here; `fused-mlp models --target {scripted.target}` lists those that are\n"
    )
    missing = cli("predict", "tiny", "-i", "/no/such/file")
    assert missing.err == "error: /no/such/file: No such file or directory\n"
    fail("INVALID_ARGUMENT", "expected 4 columns,\ngot 9")
    refused = cli("predict", "tiny", "-i", "-", stdin="1 2", target=scripted.target)
    assert refused.err == "error: INVALID_ARGUMENT: expected 4 columns, got 9\n"
    late = cli("predict", "stuck", "-i", "-", "--timeout", 0.1, stdin="1 2 3 4", target=scripted.target)
    assert "did not answer in time" in late.err
    assert "--timeout waits longer" in late.err


def test_nobody_listening_says_where_and_how_to_start_a_server(cli):
    outcome = cli("predict", "tiny", "-i", "-", "--timeout", 0.1, stdin="1 2 3 4", target="127.0.0.1:1")
    assert outcome.code == 1
    assert outcome.err == (
        "error: no answer from 127.0.0.1:1: Connection refused; "
        "start a server with `fused-mlp serve`, or name another with --target\n"
    )


def test_tls_options_reach_the_server(cli, secure_target, certificate):
    cert, key = certificate
    args = ["--tls-ca", cert, "--tls-name", "models.test", "--tls-cert", cert, "--tls-key", key]
    assert cli("predict", "tiny", "--example", *args, target=secure_target).code == 0
    assert cli("health", *args, target=secure_target).code == 0
    assert cli("health", "--tls", "--timeout", 2, target=secure_target).code == 1


def test_unreadable_tls_file_is_named(cli):
    outcome = cli("health", "--tls-ca", "/no/ca.pem")
    assert outcome.code == 1
    assert "/no/ca.pem" in outcome.err
    assert "give both cert and key" in cli("health", "--tls-cert", "x.pem").err


def test_example_of_a_version_that_there_is_not_is_refused_for_that(cli, server):
    outcome = cli("predict", "digits", "--example", "--version", "99", target=server.target)
    assert outcome.code == 1
    assert outcome.err.startswith("error: model 'digits' has no version 99")
