# SPDX-License-Identifier: Apache-2.0
"""Serves a class with a method for each RPC of a service, from the service's descriptor."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass


def generic_handler(messages: ModuleType, service: str, servicer: Any) -> grpc.GenericRpcHandler:
    descriptor = messages.DESCRIPTOR.services_by_name[service]
    handlers = {}
    for method in descriptor.methods:
        received = "stream" if method.client_streaming else "unary"
        sent = "stream" if method.server_streaming else "unary"
        make = getattr(grpc, f"{received}_{sent}_rpc_method_handler")
        handlers[method.name] = make(
            getattr(servicer, method.name),
            GetMessageClass(method.input_type).FromString,
            GetMessageClass(method.output_type).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)
