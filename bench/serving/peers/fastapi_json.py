# SPDX-License-Identifier: Apache-2.0
"""A peer of rest_peers.py, an afternoon's work: `fastapi_json.py PORT`, with the model's folder in PEER_MODEL."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import fastapi
import torch
import uvicorn

from fused_mlp import models

module = models.load(Path(os.environ["PEER_MODEL"])).to_torch().eval()
app = fastapi.FastAPI()


@app.post("/inference")
async def infer(body: dict[str, Any]) -> Any:
    tensor = body["inputs"][0]
    with torch.inference_mode():
        output = module(torch.tensor(tensor["data"], dtype=torch.float32).reshape(tensor["shape"]))
    return {"outputs": [{"name": "output", "shape": list(output.shape), "data": output.ravel().tolist()}]}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
