# SPDX-License-Identifier: Apache-2.0
"""KServe's own packages, in a venv of their own: `kserve_cases.py fetch|infer|check ...` prints one JSON object."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any


def fetch(uri: str, folder: str) -> dict[str, object]:
    """As KServe's storage initializer does before the server starts."""
    from kserve_storage import Storage

    Storage.download(uri, folder)
    return {"files": sorted(path.name for path in Path(folder).iterdir())}


async def infer(target: str, model: str) -> dict[str, object]:
    import grpc
    import numpy as np
    from kserve import InferenceGRPCClient, InferInput, InferRequest
    from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
    from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

    x = np.linspace(0, 1, 128, dtype=np.float32).reshape(2, 64)
    outputs = []
    async with InferenceGRPCClient(target) as client:
        ready = [
            await client.is_server_live(),
            await client.is_server_ready(),
            await client.is_model_ready(model),
        ]
        for binary in (False, True):
            tensor = InferInput("input", [2, 64], "FP32")
            tensor.set_data_from_numpy(x, binary_data=binary)
            answer = await client.infer(InferRequest(model_name=model, infer_inputs=[tensor]))
            outputs.append(answer.outputs[0].as_numpy().tolist())
    async with grpc.aio.insecure_channel(target) as channel:
        stub = GRPCInferenceServiceStub(channel)
        loaded = await stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name=model))
        unloaded = await stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name=model))
        repository = [loaded.model_name, loaded.isLoaded, unloaded.model_name, unloaded.isUnloaded]
    return {"ready": ready, "outputs": outputs, "repository": repository}


def check(*files: str) -> dict[str, object]:
    """By KServe's and Kubernetes' generated models: unknown fields, by their path."""
    import kserve.models
    import kubernetes.client
    import yaml

    kinds = {
        "ClusterServingRuntime": "V1alpha1ClusterServingRuntime",
        "InferenceService": "V1beta1InferenceService",
    }

    def unknown(value: Any, type_name: str, path: str) -> list[str]:
        inner = re.fullmatch(r"(?:list\[|dict\(str, )(.*)[\])]", type_name)
        if inner:
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            return [line for key, each in pairs for line in unknown(each, inner[1], f"{path}.{key}")]
        model = getattr(kserve.models, type_name, None) or getattr(kubernetes.client, type_name, None)
        if model is None:  # str, int, object
            return []
        if not isinstance(value, dict):
            return [f"{path}: expected {type_name}"]
        names = {theirs: ours for ours, theirs in model.attribute_map.items()}
        return [
            line
            for key, each in value.items()
            for line in (
                unknown(each, model.openapi_types[names[key]], f"{path}.{key}")
                if key in names
                else [f"{path}.{key}: unknown"]
            )
        ]

    found: list[str] = []
    for file in files:
        manifest = yaml.safe_load(Path(file).read_text())
        found += unknown(manifest, kinds[manifest["kind"]], manifest["kind"])
    return {"unknown": found}


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    outcome = (
        asyncio.run(infer(*arguments))
        if what == "infer"
        else {"fetch": fetch, "check": check}[what](*arguments)
    )
    print(json.dumps(outcome))
