"""The generated code is what protoc makes of the .proto files."""

from pathlib import Path

import pytest
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = sorted(path.name for path in (ROOT / "protos").glob("*.proto"))


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    assert PROTOS == ["admin.proto", "fused_mlp.proto", "open_inference.proto"]
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    sources = [f"fused_mlp/protos/{name}" for name in PROTOS]
    assert protoc.main(["protoc", f"-I{ROOT}", *outputs, *sources]) == 0
    made = {path.name: path.read_text() for path in (tmp_path / "fused_mlp" / "protos").iterdir()}
    assert len(made) == 3 * len(PROTOS)
    for name, text in made.items():
        committed = (ROOT / "protos" / name).read_text()
        if committed != text:
            pytest.fail(f"protos/{name} is not what protoc makes of its .proto: run `make proto`")


def test_importing_the_generated_code_needs_no_server() -> None:
    from fused_mlp.protos import fused_mlp_pb2, open_inference_pb2

    assert fused_mlp_pb2.DESCRIPTOR.package == "fused_mlp.v1"
    assert open_inference_pb2.DESCRIPTOR.package == "inference"
