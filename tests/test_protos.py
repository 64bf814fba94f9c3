# SPDX-License-Identifier: Apache-2.0
"""The descriptors and type stubs are what protoc makes of the .proto files, and every name in the stubs is there."""

from __future__ import annotations

import ast
import pickle
from importlib import import_module
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = sorted(path.stem for path in (ROOT / "protos").glob("*.proto"))


def test_generated_files_are_up_to_date(tmp_path: Path) -> None:
    assert PROTOS == [
        "admin",
        "fused_mlp",
        "health",
        "open_inference",
        "orca",
        "reflection",
        "reflection_v1alpha",
    ]
    descriptors = tmp_path / "descriptors.binpb"
    sources = [f"fused_mlp/protos/{name}.proto" for name in PROTOS]
    arguments = [f"-I{ROOT}", f"--pyi_out={tmp_path}", f"--descriptor_set_out={descriptors}"]
    assert protoc.main(["protoc", *arguments, *sources]) == 0
    made = [descriptors, *(tmp_path / "fused_mlp" / "protos").iterdir()]
    assert len(made) == 1 + len(PROTOS)
    for path in made:
        if (ROOT / "protos" / path.name).read_bytes() != path.read_bytes():
            pytest.fail(f"protos/{path.name} is not what protoc makes of the .proto files: run `make proto`")


@pytest.mark.parametrize("name", PROTOS)
def test_a_module_defines_what_its_type_stub_declares(name: str) -> None:
    module = import_module(f"fused_mlp.protos.{name}_pb2")
    declared = set()
    for node in ast.parse((ROOT / "protos" / f"{name}_pb2.pyi").read_text()).body:
        if isinstance(node, ast.ClassDef):
            declared.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            declared.add(node.target.id)
    assert declared
    assert declared <= vars(module).keys()


def test_our_messages_stay_out_of_the_default_pool() -> None:
    """tritonclient and grpcio-health-checking register the same names there."""
    from fused_mlp.protos import fused_mlp_pb2, health_pb2, open_inference_pb2

    for module in (fused_mlp_pb2, health_pb2, open_inference_pb2):
        assert module.DESCRIPTOR.pool is not descriptor_pool.Default()
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindFileByName(module.DESCRIPTOR.name)


def test_messages_can_be_pickled_by_the_name_of_their_module() -> None:
    """As Ray and multiprocessing do."""
    from fused_mlp.protos import fused_mlp_pb2

    request = fused_mlp_pb2.PredictRequest(model="digits")
    assert type(request).__module__ == fused_mlp_pb2.__name__
    assert pickle.loads(pickle.dumps(request)) == request
