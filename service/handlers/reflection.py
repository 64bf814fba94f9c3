# SPDX-License-Identifier: Apache-2.0
"""grpc.reflection.v1 and v1alpha: describes the served RPCs from our own descriptors, none of which has extensions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from fused_mlp.protos import reflection_pb2 as pb
from fused_mlp.protos import reflection_v1alpha_pb2 as v1alpha
from fused_mlp.protos.descriptors import POOL
from fused_mlp.service.errors import Code
from fused_mlp.service.fronts.rpc import Call, Rpc, rpcs_of


def rpcs(services: Iterable[str]) -> list[Rpc]:
    own = [file.DESCRIPTOR.services_by_name["ServerReflection"] for file in (pb, v1alpha)]
    names = sorted([*services, *(service.full_name for service in own)])

    async def info(requests: AsyncIterator[Any], _: Call) -> AsyncIterator[Any]:
        async for request in requests:
            response = _answer(request, names)
            response.original_request.CopyFrom(request)
            yield response

    return [rpc for service in own for rpc in rpcs_of(service, {"ServerReflectionInfo": info})]


def _answer(request: Any, services: list[str]) -> Any:
    match request.WhichOneof("message_request"):
        case "list_services":
            listed = pb.ListServiceResponse(service=[pb.ServiceResponse(name=name) for name in services])
            return pb.ServerReflectionResponse(list_services_response=listed)
        case "file_by_filename":
            return _file(POOL.FindFileByName, request.file_by_filename)
        case "file_containing_symbol":
            return _file(POOL.FindFileContainingSymbol, request.file_containing_symbol)
        case "all_extension_numbers_of_type":
            return _extensions(request.all_extension_numbers_of_type)
        case "file_containing_extension":
            return _error(Code.NOT_FOUND, "no message served here has extensions")
        case _:
            return _error(Code.INVALID_ARGUMENT, "message_request: expected one of its fields, got none")


def _file(find: Callable[[str], Any], name: str) -> Any:
    """The file, after the files it imports."""
    try:
        found = find(name)
    except KeyError:
        return _error(Code.NOT_FOUND, "no such file or symbol")
    files: dict[str, bytes] = {}

    def collect(file: Any) -> None:
        for dependency in file.dependencies:
            collect(dependency)
        proto = FileDescriptorProto()
        file.CopyToProto(proto)
        files[file.name] = proto.SerializeToString()

    collect(found)
    # The file that was asked for comes first: some clients read no further.
    described = pb.FileDescriptorResponse(file_descriptor_proto=reversed(files.values()))
    return pb.ServerReflectionResponse(file_descriptor_response=described)


def _extensions(message: str) -> Any:
    try:
        POOL.FindMessageTypeByName(message)
    except KeyError:
        return _error(Code.NOT_FOUND, "no such message")
    none = pb.ExtensionNumberResponse(base_type_name=message)
    return pb.ServerReflectionResponse(all_extension_numbers_response=none)


def _error(code: Code, text: str) -> Any:
    error = pb.ErrorResponse(error_code=code.value, error_message=text)
    return pb.ServerReflectionResponse(error_response=error)
