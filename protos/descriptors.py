# SPDX-License-Identifier: Apache-2.0
"""Message classes made from descriptors.binpb, in a pool of their own. protoc's Python output would demand a recent
protobuf, and would clash in protobuf's default pool with packages that bring the same Open Inference or health
messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

POOL = DescriptorPool()
for _file in FileDescriptorSet.FromString((Path(__file__).parent / "descriptors.binpb").read_bytes()).file:
    POOL.AddSerializedFile(_file.SerializeToString())


def names_of(proto: str) -> dict[str, Any]:
    """What protoc's module for `proto` would define: DESCRIPTOR, the messages, the enums and their values."""
    file = POOL.FindFileByName(f"fused_mlp/protos/{proto}")
    names: dict[str, Any] = {"DESCRIPTOR": file}
    for name, message in file.message_types_by_name.items():
        names[name] = GetMessageClass(message)
        # Without it pickle looks for the class in every module, for every message.
        names[name].__module__ = f"fused_mlp.protos.{proto.removesuffix('.proto')}_pb2"
    for name, enum in file.enum_types_by_name.items():
        names[name] = EnumTypeWrapper(enum)
        names.update((value.name, value.number) for value in enum.values)
    return names
