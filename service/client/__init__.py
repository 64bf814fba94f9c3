# SPDX-License-Identifier: Apache-2.0
"""The Python client, sync and asyncio: `Client(target).predict(model, x) -> Prediction`. Knows only the wire contract,
not the server or kernels. Takes torch tensors without importing torch. Names are imported on first use: `fused-mlp
health` needs few of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fused_mlp.service.client.aio import AsyncClient
    from fused_mlp.service.client.channel import Tls
    from fused_mlp.service.client.errors import PredictError
    from fused_mlp.service.client.model_info import (
        InputInfo,
        LayerInfo,
        ModelInfo,
        OutputInfo,
        PrecisionErrorInfo,
        ServedKernel,
        StepInfo,
        VersionInfo,
    )
    from fused_mlp.service.client.prediction import Prediction, StreamItem, Timings
    from fused_mlp.service.client.retry import RetryPolicy
    from fused_mlp.service.client.sync import Client

_MODULES = {
    "AsyncClient": "aio",
    "Client": "sync",
    "LayerInfo": "model_info",
    "ModelInfo": "model_info",
    "InputInfo": "model_info",
    "OutputInfo": "model_info",
    "PrecisionErrorInfo": "model_info",
    "PredictError": "errors",
    "Prediction": "prediction",
    "RetryPolicy": "retry",
    "ServedKernel": "model_info",
    "StepInfo": "model_info",
    "StreamItem": "prediction",
    "Timings": "prediction",
    "Tls": "channel",
    "VersionInfo": "model_info",
}

__all__ = [
    "AsyncClient",
    "Client",
    "InputInfo",
    "LayerInfo",
    "ModelInfo",
    "OutputInfo",
    "PrecisionErrorInfo",
    "PredictError",
    "Prediction",
    "RetryPolicy",
    "ServedKernel",
    "StepInfo",
    "StreamItem",
    "Timings",
    "Tls",
    "VersionInfo",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
