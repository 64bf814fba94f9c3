# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp profile` on the command line: its tables, files and JSON, and one clear line for every bad argument."""

import json

import pytest

from fused_mlp.kernels.profile import random_mlp
from fused_mlp.models import save
from fused_mlp.models.weights.precision import to_precision
from tests.support.documents import KEYS

QUICK = ("--variants", "eager,fused", "--budget", "0.01", "--threads", "1")


def test_table_page_traces_and_flame_graphs(cli, tmp_path):
    page, traces = tmp_path / "report.html", tmp_path / "traces"
    outcome = cli(
        "profile", "--dims", "16,32,8", "--batch", "1,4", *QUICK, "--html", page, "--trace-dir", traces,
        "--expect", "ops=7,launches=3",
        "--sweep", "--sweep-widths", "8,16", "--sweep-batches", "1,4", "--sweep-file", tmp_path / "sweep.json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    for words in (
        "16-32-8 relu",
        "eager",
        "fused",
        "differs",
        "as guessed",
        "batch 4 is",
        "speed-up of fused",
    ):
        assert words in outcome.out
    # Paths are as long as they are.
    assert all(len(line) <= 80 for line in outcome.out.splitlines() if not line.startswith("written"))
    names = {f"{variant}-batch{batch}" for variant in ("eager", "fused") for batch in (1, 4)}
    found = {path.name for path in traces.iterdir()}
    assert found == {f"{name}.json" for name in names} | {f"{name}-flame.svg" for name in names}
    text = page.read_text()
    assert "fused-mlp" in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert "<script" not in text


def test_json_has_everything(cli, tmp_path):
    save(random_mlp([12, 16, 4]), tmp_path / "m" / "1")
    outcome = cli(
        "profile", tmp_path / "m" / "1", "--batch", "2", *QUICK, "--json", "--expect", "fused.launches=1"
    )
    said = json.loads(outcome.out)
    assert said.keys() == KEYS["profile"]
    assert said["model"] == "12-16-4 relu"
    assert [point["variant"] for point in said["points"]] == ["eager", "fused"]
    assert said["expectations"][0]["found"] == 1
    assert len(said["advice"]) == 1


def test_widths_are_profiled_in_a_precision(cli):
    outcome = cli("profile", "--dims", "64,64,10", "--precision", "int8", "--batch", "1", *QUICK, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["precision"] == "int8"


MATRICES = {"layers.0": (600, 400), "layers.1": (400, 300), "layers.2": (300, 10)}


@pytest.mark.parametrize("precision", ["int8", "bfloat16", "bfloat16 dtype"])
def test_weights_in_fewer_bits_are_profiled_as_they_are_served(cli, tmp_path, precision):
    wide, kept = random_mlp([600, 400, 300, 10]), "layers.2"
    precision, _, of_dtype = precision.partition(" ")
    mlp = wide.rounded_to("bfloat16") if of_dtype else to_precision(wide, precision, frozenset({kept}))
    save(mlp, tmp_path / "m" / "1")
    page = tmp_path / "report.html"
    outcome = cli(
        "profile", tmp_path / "m" / "1", "--batch", "128", *QUICK, "--html", page, "--json",
        "--sweep", "--sweep-widths", "8", "--sweep-batches", "1", "--sweep-file", tmp_path / "sweep.json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert outcome.err.strip() == ""
    said = json.loads(outcome.out)
    eager, fused = said["points"]
    assert said["failures"] == {}
    assert (said["precision"], said["sweep"]["precision"]) == (precision, precision)
    assert said["compared"] == (
        f"fused is the kernel of the {precision} weights that would be served; eager runs the same weights widened to "
        "float32"
    )
    assert f"{said['compared'].capitalize()}." in page.read_text()
    assert f"{wide.spec.parameters:,} parameters, {precision}" in page.read_text()
    assert ("int8" in said["kernel"]) == (precision == "int8")
    assert fused["counts"]["launches"] == {"fused_mlp::mlp": 1}
    # The bytes of the weights as they are kept: int8 and a scale per output, or two bytes.
    sizes = {}
    for name, (inputs, outputs) in MATRICES.items():
        whole = name == kept and not of_dtype
        each = 4 * inputs if whole else inputs + 4 if precision == "int8" else 2 * inputs
        sizes[name] = (each + 4) * outputs  # and the bias
    steps = {step["name"]: step for step in said["steps"]}
    assert {name: step["weight_bytes"] for name, step in steps.items()} == sizes
    assert steps["layers.0"]["precision"] == precision
    assert steps[kept]["precision"] == (precision if of_dtype else "float32")
    assert all(step["fused_us"] > 0 for step in steps.values())
    assert fused["counts"]["bytes_moved"] == sum(sizes.values()) + 128 * 4 * (600 + 10)
    # Each against its own limit.
    flops = 128 * sum(2 * inputs * outputs for inputs, outputs in MATRICES.values())
    assert eager["regime"]["compute_us"] == pytest.approx(flops / said["flops_per_s"] * 1e6, rel=0.02)
    if precision == "int8":
        whole_flops = 128 * 2 * 300 * 10
        limit_s = (flops - whole_flops) / said["int8_ops_per_s"] + whole_flops / said["flops_per_s"]
        assert fused["regime"]["compute_us"] == pytest.approx(limit_s * 1e6, rel=0.02)
    else:
        assert said["int8_ops_per_s"] is None
        assert fused["regime"]["compute_us"] == eager["regime"]["compute_us"]
    assert said["fused_bytes_per_s"] == pytest.approx(
        sum(sizes.values()) / fused["regime"]["memory_us"] * 1e6
    )


def test_the_table_says_what_is_compared_with_what(cli, tmp_path):
    save(to_precision(random_mlp([48, 64, 10]), "int8", frozenset({"layers.1"})), tmp_path / "m" / "1")
    outcome = cli("profile", tmp_path / "m" / "1", "--batch", "4", *QUICK)
    assert outcome.code == 0, outcome.err
    assert all(len(line) <= 80 for line in outcome.out.splitlines())
    words = " ".join(outcome.out.split())
    for each in (
        "48-64-10 relu: 3,786 parameters, int8 fused is the kernel of the int8 weights that would be served",
        "eager runs the same weights widened to float32",
        "billion operations/s in int8",
        "3.5 KiB int8",
        "2.5 KiB float32",
        "fusing in int8",
    ):
        assert each in words


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "expected a MODEL or --dims, such as --dims 784,512,256,10; got neither"),
        (("somewhere", "--dims", "1,2"), "expected a MODEL or --dims, such as --dims 784,512,256,10; got both"),
        (("nowhere",), "nowhere: no such file or directory"),
        (("--dims", "64"), "--dims: expected at least two widths by commas, such as 784,512,256,10; got '64'"),
        (("--dims", "64,x"), "--dims: expected at least two widths by commas, such as 784,512,256,10; got '64,x'"),
        (("--dims", "64,0"), "--dims: expected at least two widths by commas, such as 784,512,256,10; got '64,0'"),
        (("--dims", "4,4", "--batch", "0"), "--batch: expected whole numbers from 1 by commas"),
        (("--dims", "4,4", "--batch", "1,,2"), "--batch: expected whole numbers from 1 by commas"),
        (("--dims", "4,4", "--activation", "sine"), "--activation: expected one of identity, relu,"),
        (("--dims", "4,4", "--precision", "int4"), "--precision: expected one of float32, bfloat16, int8; got 'int4'"),
        (("somewhere", "--precision", "int8"), "--precision: expected with --dims only, got a MODEL"),
        (("--dims", "4,4", "--gated"), "--gated: expected a hidden layer, such as --dims 768,3072,768; got --dims 4,4"),
        (("--dims", "4,4", "--device", "tpu"), "--device: expected cpu, cuda or cuda:N, got 'tpu'"),
        (("--dims", "4,4", "--variants", "quick"), "--variants: expected some of eager, compile, fused by commas"),
        (("--dims", "4,4", "--expect", "ops"), "expect: expected NAME=NUMBER pairs by commas"),
        (("--dims", "4,4", "--html", "no/such/folder/r.html"), "no/such/folder/r.html: there is no folder"),
        (("--dims", ",".join(["4"] * 300)), "expected at most 256 layers, got 299"),
        (("--dims", "1048576,1048576"), "expected weights of at most "),
        (("--dims", "4,4", "--sweep", "--sweep-widths", "1048576"), "expected weights of at most "),
        (("--dims", "4,4", "--threads", "0"), "--threads: expected 1 to 1024, got 0"),
        (("--dims", "4,4", "--threads", "1025"), "--threads: expected 1 to 1024, got 1025"),
        (("--dims", "4,4", "--seconds", "5"), "--seconds: expected with --live HOST:PORT only"),
        (("--dims", "4,4", "--tls-ca", "ca.pem"), "--tls-ca: expected with --live HOST:PORT only"),
        (("--dims", "4,4", "--sweep-widths", "8"), "--sweep-widths: expected with --sweep only"),
        (("--dims", "4,4", "--sweep-file", "s.json"), "--sweep-file: expected with --sweep only"),
        (("somewhere", "--gated"), "--gated: expected with --dims only, got a MODEL, which has its own"),
        (("somewhere", "--activation", "relu"), "--activation: expected with --dims only, got a MODEL"),
        (("--live", "127.0.0.1:1", "--batch", "4"), "--batch: expected without --live"),
        (("--live", "127.0.0.1:1", "--dims", "4,4"), "expected --live, a MODEL or --dims; got more than one of them"),
        (("--live", "127.0.0.1:1", "--seconds", "100"), "--seconds: expected more than 0 and at most 60, got 100"),
        (("--live", "127.0.0.1:1"), "no answer from 127.0.0.1:1"),
    ],
)  # fmt: skip
def test_a_bad_argument_gives_one_clear_line(cli, arguments, line):
    outcome = cli("profile", *arguments)
    of_options = line.startswith(("--", "expected a MODEL", "expected --live"))
    assert outcome.code == (2 if of_options else 1)
    assert outcome.out == ""
    assert outcome.err.startswith(f"error: {line}")
    assert outcome.err.count("\n") == 1
