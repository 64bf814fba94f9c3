"""The Python client, sync and asyncio: `Client(target).predict(model, x) -> Prediction`. Knows the wire
contract only, nothing of the server or of kernels. torch tensors are taken, but torch is not imported."""

from service.client.aio import AsyncClient
from service.client.channel import Tls
from service.client.errors import PredictError
from service.client.model_info import KernelInfo, LayerInfo, ModelInfo, VersionInfo
from service.client.prediction import Prediction, StreamItem, Timings
from service.client.retry import RetryPolicy
from service.client.sync import Client

__all__ = [
    "AsyncClient",
    "Client",
    "KernelInfo",
    "LayerInfo",
    "ModelInfo",
    "PredictError",
    "Prediction",
    "RetryPolicy",
    "StreamItem",
    "Timings",
    "Tls",
    "VersionInfo",
]
