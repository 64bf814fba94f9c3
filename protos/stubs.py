# SPDX-License-Identifier: Apache-2.0
"""Client stubs made from a service's descriptor, for blocking and asyncio channels alike. Does not import grpc."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from google.protobuf.message_factory import GetMessageClass


class Stub:
    """An attribute for each method of a service: Stub(channel, fused_mlp_pb2, "Inference").Predict(request)"""

    def __init__(self, channel: Any, messages: ModuleType, service: str) -> None:
        descriptor = messages.DESCRIPTOR.services_by_name[service]
        for method in descriptor.methods:
            sent = "stream" if method.client_streaming else "unary"
            received = "stream" if method.server_streaming else "unary"
            open_call = getattr(channel, f"{sent}_{received}")
            call = open_call(
                f"/{descriptor.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, call)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
