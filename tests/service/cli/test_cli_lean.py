# SPDX-License-Identifier: Apache-2.0
"""What `pip install fused-mlp` brings is enough for the client and the commands that talk to a server; a command that
needs more says in one line what to install."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fused_mlp import extras
from fused_mlp.service.missing import explain_import, installer
from tests.support.server import Server, environment, free_port

# What a server, its kernels and its models need. typer itself imports pydantic, so commands cannot do without it.
HEAVY = (
    "torch",
    "onnx",
    "prometheus_client",
    "safetensors",
    "pydantic_settings",
    "fused_mlp.models",
    "fused_mlp.kernels",
    "fused_mlp.service._engine",
    "fused_mlp.service.settings",
    "fused_mlp.service.catalog",
    "fused_mlp.protos.open_inference_pb2",
)
BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in {blocked!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
sys.argv = ["fused-mlp", *{arguments!r}]
"""
MAIN = "from fused_mlp.service.cli import main; main()"


def run_without(
    blocked: tuple[str, ...], *arguments: str, code: str = MAIN
) -> subprocess.CompletedProcess[str]:
    program = BLOCK.format(blocked=blocked, arguments=arguments) + code
    return subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=100
    )


@pytest.fixture(scope="module")
def admin_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def open_server(admin_port: int) -> Iterator[Server]:
    """A server that lets a request name its variant, with an admin port."""
    with Server(allow_override=1, admin_port=admin_port) as running:
        yield running


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["predict", "digits", "--example"], "digits/1 fused"),
        (["predict", "digits", "--example", "--json"], '"version": 1'),
        (["models"], "digits"),
        (["models", "digits"], "fused kernel"),
        (["health"], "SERVING"),
        (["health", "digits", "--timeout", "20"], "digits: SERVING"),
        (["ab", "digits", "--duration", "2", "--rate", "40"], "unfused / fused"),
    ],
)
def test_commands_against_a_server_need_nothing_heavy(open_server, arguments, says):
    run = run_without(HEAVY, *arguments, "--target", open_server.target)
    assert says in run.stdout, run.stderr
    assert run.returncode in ((0, 4) if arguments[0] == "ab" else (0,)), run.stderr


@pytest.mark.parametrize(
    ("arguments", "warns"), [(["get"], ""), (["set", "digits", "--split", "0"], "not kept: the demo")]
)
def test_policy_needs_nothing_heavy(open_server, admin_port, arguments, warns):
    run = run_without(HEAVY, "policy", *arguments, "--target", f"127.0.0.1:{admin_port}")
    assert run.returncode == 0
    assert warns in run.stderr
    assert run.stderr.count("\n") == bool(warns)
    assert "digits" in run.stdout


def test_the_client_needs_neither_pydantic_nor_typer(open_server):
    code = (
        "from fused_mlp import Client, AsyncClient\n"
        f"with Client({open_server.target!r}) as client:\n"
        "    example = client.model('digits').version().example\n"
        "    print(client.predict('digits', example).output.argmax())\n"
    )
    run = run_without((*HEAVY, "pydantic", "typer", "rich"), code=code)
    assert (run.stdout, run.stderr) == ("4\n", "")


def test_help_needs_nothing_heavy():
    run = run_without((*HEAVY, "grpc", "numpy"), "--help")
    assert re.search(r"serve +Serve the models", run.stdout), run.stderr


@pytest.mark.parametrize(
    ("missing", "arguments", "says"),
    [
        ("prometheus_client", ["serve"], "fused-mlp serve needs the server: pip install 'fused-mlp[serve]'"),
        ("safetensors", ["serve"], "fused-mlp serve needs the server: pip install 'fused-mlp[serve]'"),
        ("torch", ["profile", "--dims", "4,3"], "fused-mlp profile needs PyTorch: make install"),
        ("ray", ["ray", "status"], "fused-mlp ray needs Ray: pip install 'fused-mlp[ray]'"),
    ],
)
def test_a_missing_extra_is_one_line(missing, arguments, says):
    run = run_without((missing,), *arguments)
    assert (run.returncode, run.stdout, run.stderr) == (1, "", f"error: {says}\n")


def test_torch_is_added_by_make_in_a_checkout_and_by_pip_elsewhere(monkeypatch):
    assert installer("torch") == "make install"
    monkeypatch.setattr(extras, "IN_CHECKOUT", False)
    assert installer("torch") == "pip install 'fused-mlp[torch]'"


def test_onnx_without_its_extra_is_one_line(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"x")
    # The block holds in this process alone.
    options = ("--no-sandbox", "-r", str(tmp_path), "-n", "m")
    run = run_without(("onnx",), "import", str(tmp_path / "m.onnx"), *options)
    assert run.returncode == 1
    assert "pip install 'fused-mlp[onnx]'" in run.stderr
    assert run.stderr.count("\n") == 1


def test_another_missing_module_is_shown_as_it_is():
    run = run_without(("json",), "serve")
    assert run.returncode != 0
    assert "Traceback" in run.stderr


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            ImportError("libnghttp2.so.14: cannot open shared object file: No such file or directory"),
            "fused-mlp serve needs the shared library libnghttp2.so.14: install the package libnghttp2-14",
        ),
        (
            ImportError("libstrange.so: cannot open shared object file: No such file or directory"),
            "fused-mlp serve needs the shared library libstrange.so: install the package that has it",
        ),
        (ImportError("cannot import name 'x' from 'json'", name="json"), None),
    ],
)
def test_a_missing_shared_library_is_named(error, says):
    assert explain_import(error, "fused-mlp serve") == says


def test_missing_compiled_modules_are_one_line():
    run = run_without(("fused_mlp.service._engine",), "serve")
    assert run.returncode == 1
    assert run.stderr.startswith("error: the compiled modules of fused-mlp are missing")
    assert run.stderr.count("\n") == 1


def test_health_takes_the_options_of_its_help(cli):
    from fused_mlp.service.cli.quick_health import OPTIONS

    text = cli("health", "--help").out
    for option, (variable, _) in OPTIONS.items():
        assert f"{option} " in text
        assert variable in text
    shown = {word for word in text.split() if word.startswith("--")}
    assert shown == {*OPTIONS, "--tls", "--json", "--help"}


def test_health_in_short_says_what_the_full_command_says(cli, open_server):
    """The same words and exit codes with and without typer, which --timeout=inf needs."""
    for arguments in (
        ["digits"],
        [],
        ["nope"],
        ["--target", "127.0.0.1:1"],
        ["--tls-ca", "/none.pem"],
        ["a", "b"],
    ):
        target = {"FUSED_MLP_TARGET": open_server.target}
        short = subprocess.run(
            [sys.executable, "-m", "fused_mlp.service.cli", "health", *arguments],
            env=environment() | target, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        full = cli("health", *arguments, target=open_server.target)
        assert (short.returncode, short.stdout) == (full.code, full.out), arguments
        if full.code == 1:
            assert short.stderr == full.err, arguments


def test_health_over_tls(certificate, secure_target):
    cert, key = map(str, certificate)
    options = ["--tls-ca", cert, "--tls-name", "models.test", "--tls-cert", cert, "--tls-key", key]
    code = MAIN.replace("main; main()", "main\ntry: main()\nfinally: print('typer' in sys.modules)")
    run = run_without((), "health", "--target", secure_target, *options, code=code)
    assert (run.stdout, run.returncode) == (f"{secure_target}: SERVING\nFalse\n", 0), run.stderr


def test_the_list_of_commands_says_what_each_command_says(cli):
    from fused_mlp.service.cli.program import COMMANDS

    for name, (_, summary, _) in COMMANDS.items():
        shown = " ".join(cli(name, "--help").out.split())
        assert summary in shown, name
