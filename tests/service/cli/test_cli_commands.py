# SPDX-License-Identifier: Apache-2.0
"""`models`, `health`, `import`, `serve --help`, and the program as a whole."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest
import torch
from grpc_health.v1.health_pb2 import HealthCheckResponse

from fused_mlp import models
from fused_mlp.service.cli.program import COMMANDS
from fused_mlp.service.settings.settings import Settings


def test_models_lists_what_is_served_and_what_is_broken(cli, scripted):
    outcome = cli("models", target=scripted.target)
    assert outcome.code == 0, outcome.err
    text = " ".join(outcome.out.split())
    for part in ("tiny", "7 (default)", "4-5-3", "fused: cpu", "UNAVAILABLE", "missing"):
        assert part in text
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_models_describes_one(cli, scripted):
    outcome = cli("models", "tiny", target=scripted.target)
    assert "tiny version 7, the default" in outcome.out
    assert "A tiny classifier." in outcome.out
    assert "43 parameters" in outcome.out
    assert "fastest of cpu, torch" in outcome.out
    assert "[bold]cat[/bold]" in outcome.out
    described = json.loads(cli("models", "tiny", "--json", target=scripted.target).out)
    assert described["versions"][0]["kernels"][0]["isa"] == "avx2"
    listed = json.loads(cli("models", "--json", target=scripted.target).out)
    assert [model["name"] for model in listed] == ["tiny", "broken"]


def test_health_is_an_exit_code(cli, scripted):
    healthy = cli("health", target=scripted.target)
    assert (healthy.code, healthy.out) == (0, f"{scripted.target}: SERVING\n")
    assert cli("health", "tiny", "--target", scripted.target).code == 0
    scripted.statuses.set("tiny", HealthCheckResponse.NOT_SERVING)
    sick = cli("health", "tiny", target=scripted.target)
    assert (sick.code, sick.out) == (1, "tiny: NOT_SERVING\n")
    assert cli("health", "nope", target=scripted.target).code == 1
    assert cli("health", target="127.0.0.1:1").code == 1


def test_import_makes_versions(cli, tmp_path):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    torch.save(module.state_dict(), tmp_path / "net.pt")
    args = ["import", tmp_path / "net.pt", "-r", tmp_path / "repo", "-n", "net", "--activation", "relu"]
    (tmp_path / "row.csv").write_text("1,2,3,4")
    first = cli(*args, "--labels", "a, b,c", "--description", "Three.", "--example", tmp_path / "row.csv")
    assert first.code == 0, first.err
    assert "as net version 1" in first.out
    assert f"fused-mlp serve --model-repository {tmp_path / 'repo'}" in first.out
    assert "as net version 2" in cli(*args).out
    mlp = models.load(tmp_path / "repo" / "net" / "1")
    assert mlp.spec.labels == ("a", "b", "c")
    x = torch.randn(2, 4)
    with torch.inference_mode():
        torch.testing.assert_close(mlp.to_torch()(x), module(x))
        np.save(tmp_path / "x.npy", x.numpy())
        np.save(tmp_path / "y.npy", module(x).numpy())
        np.save(tmp_path / "other.npy", module(x).numpy() + 1)
    refused = cli(*args, "--check", tmp_path / "x.npy", tmp_path / "other.npy")
    assert refused.code == 1
    assert "check: 2 of 2 rows are not reproduced" in refused.err
    assert "as net version 3" in cli(*args, "--check", tmp_path / "x.npy", tmp_path / "y.npy").out


def test_import_keeps_weights_in_fewer_bits_and_says_what_that_costs(cli, tmp_path):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
    torch.save(module.state_dict(), tmp_path / "net.pt")
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).standard_normal((99, 40), np.float32))
    args = ["import", tmp_path / "net.pt", "-r", tmp_path / "repo", "-n", "net", "--activation", "relu"]
    imported = cli(*args, "--precision", "int8", "--calibrate", tmp_path / "rows.npy")
    assert imported.code == 0, imported.err
    assert "int8: error " in imported.out
    assert "over 99 given rows" in imported.out
    assert models.load(tmp_path / "repo" / "net" / "1").precision == "int8"
    args.append("--no-sandbox")  # each of which starts a process that imports torch
    refused = cli(*args, "--precision", "int8", "--max-error", "1e-7")
    assert refused.code == 1
    assert "step 'layers." in refused.err
    assert "alone has" in refused.err
    assert "expected float32, bfloat16, int8, got 'int4'" in cli(*args, "--precision", "int4").err
    rows = np.load(tmp_path / "rows.npy")
    rows[:, 0] *= 1e3
    np.save(tmp_path / "loud.npy", rows)
    with torch.no_grad():
        module[0].weight[:, 0] /= 1e6
    torch.save(module.state_dict(), tmp_path / "net.pt")
    partly = cli(*args, "--precision", "int8", "--calibrate", tmp_path / "loud.npy")
    assert "int8, 7.0% of the weights: error " in partly.out  # 150 of 2150
    assert "in float32: layers.0" in partly.out
    assert "--max-error: expected a number above 0, got nan" in cli(*args, "--max-error", "nan").err
    again = [
        "import",
        tmp_path / "repo" / "net" / "1",
        "-r",
        tmp_path / "repo",
        "-n",
        "again",
        "--no-sandbox",
    ]
    for useless in (["--calibrate", tmp_path / "rows.npy"], ["--max-error", "0.1"]):
        floats = cli(*args, *useless)
        assert floats.code == 1
        assert "--calibrate and --max-error are about" in floats.err
        assert "say --precision int8 or --precision bfloat16" in floats.err
        for asked in ([], ["--precision", "int8"]):
            assert "in int8 already, import what it was made from" in cli(*again, *asked, *useless).err
    assert cli(*again, "--precision", "int8").code == 0
    for number, widening in enumerate((["--precision", "float32"], ["--dtype", "float32"]), 2):
        assert cli(*again, *widening).code == 0
        wide = models.load(tmp_path / "repo" / "again" / str(number))
        assert (wide.precision, wide.error) == ("float32", None)


def test_import_takes_a_part_of_a_checkpoint_by_prefix_or_name(cli, tmp_path):
    from safetensors.torch import save_file

    tensors = {
        "h.0.mlp.gate_proj.weight": torch.randn(6, 4),
        "h.0.mlp.up_proj.weight": torch.randn(6, 4),
        "h.0.mlp.down_proj.weight": torch.randn(4, 6),
        "head.w": torch.randn(4, 4),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    args = ["import", tmp_path / "model.safetensors", "-r", tmp_path, "-n", "part", "--activation", "silu"]
    block = cli(*args, "--prefix", "h.0.mlp")
    assert block.code == 0, block.err
    layers = models.load(tmp_path / "part" / "1").layers
    np.testing.assert_array_equal(layers[0].gate_weight, tensors["h.0.mlp.gate_proj.weight"])
    np.testing.assert_array_equal(layers[1].weight, tensors["h.0.mlp.down_proj.weight"])
    head = cli(*args, "--map", "layers.0.weight=head.w", "--no-transposed")
    assert head.code == 0, head.err
    np.testing.assert_array_equal(models.load(tmp_path / "part" / "2").layers[0].weight, tensors["head.w"])


def test_import_refuses_in_one_line(cli, tmp_path):
    args = ["-r", tmp_path, "-n", "net"]
    missing = cli("import", tmp_path / "none.onnx", *args)
    assert missing.code == 1
    assert missing.err.startswith(f"error: {tmp_path / 'none.onnx'}")
    (tmp_path / "two.csv").write_text("1,2\n3,4")
    several = cli("import", tmp_path / "none.onnx", *args, "--example", tmp_path / "two.csv")
    assert "expected one row, got shape (2, 2)" in several.err
    assert cli("import", tmp_path / "none.onnx", *args, "--map", "a").code == 2


def test_import_asks_for_its_own_options(cli, tmp_path):
    """Readers speak to callers in Python; what the command says can be typed."""
    from safetensors.torch import save_file

    (tmp_path / "made.py").write_text(
        "import torch\nfrom torch import nn\n\ndef thin(): return nn.ReLU()\n\ndef net(): return nn.Linear(3, 2)\n\n"
        "def double(): return nn.Linear(3, 2).double()\n\n"
        "def mixed(): return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).half())\n"
    )
    torch.save({"fc.weight": torch.ones(2, 2)}, tmp_path / "w.pt")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "whole.pt")
    torch.save({"0.weight": torch.ones(2, 2).double()}, tmp_path / "double.pt")
    save_file(
        {"c_fc.weight": torch.ones(4, 4), "c_proj.weight": torch.ones(4, 4)}, tmp_path / "gpt2.safetensors"
    )
    save_file({"in.weight": torch.ones(2, 2), "out.weight": torch.ones(2, 2)}, tmp_path / "order.safetensors")
    save_file({"x.qweight": torch.ones(2, 2)}, tmp_path / "quantised.safetensors")
    save_file({"x.weight": torch.ones(2)}, tmp_path / "norm.safetensors")
    relu = ["--activation", "relu"]
    for source, options, text in (
        ("made.py:thin", [], "--row-shape 784 or --row-shape 3,8"),
        ("made.py:double", [], "round them with --dtype float32"),
        ("made.py:mixed", [], "choose one with --dtype"),
        ("made.py:net", relu, "--activation: of no use here"),
        ("made.py:net", ["--dtype", "int4"], "--dtype int4: expected float32, float16 or bfloat16"),
        (
            "w.pt",
            [],
            "such as --activation relu, or import the module with it: model.py:factory with --state-dict w.pt",
        ),
        ("whole.pt", [], "with --unsafe-pickle if you trust the file"),
        ("double.pt", relu, "--dtype float32"),
        ("gpt2.safetensors", relu, "say which with --no-transposed or --transposed"),
        ("order.safetensors", relu, "give --map"),
        ("order.safetensors", [*relu, "--map", "a=b"], "--map: 'a' is not a name such as layers.0.weight"),
        ("order.safetensors", [*relu, "--map", "a=b", "--prefix", "in"], "give --prefix or --map, not both"),
        ("quantised.safetensors", relu, "narrow --prefix or give --map"),
        ("norm.safetensors", relu, "model.py:factory with --state-dict"),
    ):
        # A sandbox starts a process that imports torch: one of these is enough.
        apart = "--sandbox" if source == "whole.pt" else "--no-sandbox"
        told = cli("import", f"{tmp_path}/{source}", "-r", tmp_path / "repo", "-n", "net", apart, *options)
        assert told.code == 1, source
        assert text in told.err
        assert "=" not in told.err.replace("layers.0", "")
        assert told.err.count("\n") == 1


def test_serve_has_an_option_and_a_variable_for_every_setting(cli):
    text = cli("serve", "--help").out
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')} " in text
        assert f"FUSED_MLP_{name.upper()}" in text
    assert "…" not in text  # nothing is cut at 80 columns
    for heading in ("Where it listens", "Batching and limits"):
        assert heading in text


@pytest.mark.parametrize(
    ("args", "env", "says"),
    [
        (["--grpc-port", "x"], {}, "--grpc-port 'x': input should be a valid integer"),
        (["--variant", "half"], {}, "--variant 'half': input should be 'fused' or 'unfused'"),
        ([], {"FUSED_MLP_GRPC_PORT": "x"}, "FUSED_MLP_GRPC_PORT='x': input should be a valid integer"),
    ],
)
def test_serve_names_a_bad_setting_the_way_it_was_given(cli, monkeypatch, args, env, says):
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    outcome = cli("serve", *args)
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: {says}")
    assert outcome.err.count("\n") == 1


def test_serve_without_a_repository_is_one_line(cli, tmp_path):
    outcome = cli("serve", "--model-repository", tmp_path / "none", "--grpc-port", 0, "--metrics-port", 0)
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: model repository {tmp_path / 'none'} does not exist")


def test_help_lists_every_command_and_typos_are_met_with_a_hint(cli):
    text = cli("--help").out
    assert re.findall(r"^│ (\w+) ", text, re.MULTILINE) == list(COMMANDS)
    typo = cli("modles")
    assert typo.code == 2
    assert "did you mean 'models'?" in typo.err
    assert cli("--version").out == f"fused-mlp {version('fused-mlp')}\n"


def test_help_and_health_do_without_what_is_heavy():
    """A container asks for its health every few seconds: torch alone would take longer than the answer."""
    for args, unwanted in {
        ("--help",): {"torch"},
        ("serve", "--help"): {"torch"},
        ("health", "--target", "127.0.0.1:1"): {"torch", "numpy", "pydantic_settings", "rich.table"},
    }.items():
        code = (
            f"import sys; sys.argv = ['fused-mlp', *{args!r}]\n"
            "from fused_mlp.service.cli import main\n"
            "try: main()\n"
            f"finally: print('LOADED', sorted({unwanted!r} & sys.modules.keys()))"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert "LOADED []" in run.stdout, (args, run.stdout[-200:])


def test_ctrl_c_ends_in_one_line(scripted):
    process = subprocess.Popen(
        [sys.executable, "-m", "fused_mlp.service.cli", "predict", "stuck", "-i", "-", "--target", scripted.target],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        process.stdin.write("1 2 3 4")
        process.stdin.close()
        assert scripted.arrived.wait(30)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == "interrupted\n"


def test_a_reader_that_leaves_early_is_no_error(scripted):
    """`fused-mlp models --json | head -c1`, with no traceback."""
    command = f"{sys.executable} -m fused_mlp.service.cli models --target {scripted.target} --json | head -c1"
    run = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("[", "")
