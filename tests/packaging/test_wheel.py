# SPDX-License-Identifier: Apache-2.0
"""The wheel, installed away from the checkout, serves, and leaves other packages alone. `make test-wheel` runs it."""

from __future__ import annotations

import re
import socket
import zipfile
from email import message_from_string
from pathlib import Path

from tests.packaging.venvs import Venv
from tests.support.rest import rest_port
from tests.support.server import Server

SMOKE = str(Path(__file__).with_name("smoke.py"))


def test_the_wheel_adds_one_name_and_brings_its_libraries(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/", 1)[0] for name in names}
    assert {re.sub(r"-[^-]+\.dist-info$", ".dist-info", top) for top in tops} == {
        "fused_mlp",
        "fused_mlp.libs",
        "fused_mlp.dist-info",
    }
    assert "fused_mlp/py.typed" in names
    assert any(re.match(r"fused_mlp\.libs/libnghttp2", name) for name in names)
    assert any(re.match(r"fused_mlp\.libs/libsimdjson", name) for name in names)  # or the wheel has no REST
    assert not [name for name in names if name.endswith((".cpp", ".hpp", "CMakeLists.txt"))]


def test_the_metadata_is_what_an_index_shows(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(path).decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Keywords"]
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not [line for line in required if line.startswith(("torch", "pydantic"))]
    assert 'torch>=2.6; extra == "torch"' in metadata.get_all("Requires-Dist", [])


def test_serves_without_torch(server_venv: Venv, client_venv: Venv, installed_server: Server) -> None:
    assert not (server_venv.site_packages() / "torch").exists()
    assert "native front" in installed_server.banner
    with socket.create_connection(("127.0.0.1", rest_port(installed_server)), timeout=20) as wire:
        wire.sendall(b"GET /v2/health/ready HTTP/1.0\r\n\r\n")
        assert wire.recv(100).startswith(b"HTTP/1.1 200 ")
    before = installed_server.metric("fused_mlp_requests_total", code="OK")
    done = client_venv.run("python", SMOKE, installed_server.target)
    assert done.stdout == "ok\n", done.stderr
    assert installed_server.metric("fused_mlp_requests_total", code="OK") == before + 4


def test_the_base_install_is_a_client(client_venv: Venv, installed_server: Server) -> None:
    target = ("--target", installed_server.target)
    assert client_venv.run("fused-mlp", "health", *target).returncode == 0
    assert "digits" in client_venv.run("fused-mlp", "models", *target).stdout
    answer = client_venv.run("fused-mlp", "predict", "digits", "--example", *target)
    assert answer.returncode == 0, answer.stderr


def test_a_command_whose_extra_is_missing_names_it(client_venv: Venv) -> None:
    refused = client_venv.run("fused-mlp", "serve")
    assert refused.returncode != 0
    assert refused.stdout == ""
    assert len(refused.stderr.splitlines()) == 1
    assert "fused-mlp[serve]" in refused.stderr


def test_unfused_without_torch_names_the_extra(server_venv: Venv) -> None:
    ports = ("--grpc-port", "0", "--rest-port", "off", "--metrics-port", "0")
    refused = server_venv.run("fused-mlp", "serve", "--variant", "unfused", *ports)
    assert refused.returncode == 1
    errors = [line for line in refused.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert errors[0].endswith("pip install 'fused-mlp[torch]'")


def test_an_install_is_lean(server_venv: Venv, client_venv: Venv, installed_server: Server) -> None:
    sizes = {"server": server_venv.megabytes(), "client": client_venv.megabytes()}
    for name, (whole, added) in sizes.items():
        print(f"\n{name} venv: {whole:.0f} MB, {added:.0f} MB without pip and setuptools")
    assert sizes["client"][1] < sizes["server"][1] < 150


def test_lives_beside_packages_of_similar_names(wheel: Path, tmp_path: Path) -> None:
    """Hugging Face's `kernels` is what transformers looks for by that name."""
    venv = Venv(tmp_path)
    venv.install(f"{wheel}[serve]", "transformers[kernels]")  # versions that fit each other
    script = (
        "import kernels, transformers, fused_mlp.kernels, fused_mlp.models, fused_mlp.service.app;"
        "assert kernels is not fused_mlp.kernels;"
        "from transformers.utils.import_utils import is_kernels_available;"
        "print(kernels.get_kernel.__module__.split('.')[0], is_kernels_available())"
    )
    assert venv.python(script) == "kernels True"
    with Server(command=[str(venv.bin / "fused-mlp"), "serve"], cwd=venv.cwd) as server:
        done = venv.run("python", SMOKE, server.target)
    assert done.stdout == "ok\n", done.stderr
