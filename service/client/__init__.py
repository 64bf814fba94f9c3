"""The Python client, sync and asyncio: `Client(target).predict(model, x) -> Prediction`. Knows the wire
contract only, nothing of the server or of kernels. torch tensors are taken, but torch is not imported."""

from fused_mlp.service.client.aio import AsyncClient
from fused_mlp.service.client.channel import Tls
from fused_mlp.service.client.errors import PredictError
from fused_mlp.service.client.model_info import LayerInfo, ModelInfo, ServedKernel, VersionInfo
from fused_mlp.service.client.prediction import Prediction, StreamItem, Timings
from fused_mlp.service.client.retry import RetryPolicy
from fused_mlp.service.client.sync import Client

__all__ = [
    "AsyncClient",
    "Client",
    "LayerInfo",
    "ModelInfo",
    "PredictError",
    "Prediction",
    "RetryPolicy",
    "ServedKernel",
    "StreamItem",
    "Timings",
    "Tls",
    "VersionInfo",
]
