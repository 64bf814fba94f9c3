# SPDX-License-Identifier: Apache-2.0
"""Writes dynamo.onnx beside this file: what torch.onnx.export(dynamo=True) makes of all activations. It is
committed, since that exporter needs onnxscript, which nothing else here does. Run by hand."""

from pathlib import Path

import torch
from torch import nn


class Gated(nn.Module):
    """A SwiGLU with gate and up in one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up = nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return nn.functional.silu(gate) * up


def build() -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(5)
    norm(torch.randn(64, 5) + 1)
    activations = [
        nn.ReLU(),
        nn.LeakyReLU(0.2),
        nn.GELU(),
        nn.GELU(approximate="tanh"),
        nn.SiLU(),
        nn.Tanh(),
        nn.Sigmoid(),
        nn.ELU(),
        nn.Softplus(),
        nn.Hardswish(),
        nn.ReLU6(),
        nn.Mish(),
    ]
    layers = [part for activation in activations for part in (nn.Linear(5, 5), activation)]
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(6, 5),
        norm,
        *layers,
        nn.Linear(5, 4),
        Gated(),
        nn.Linear(6, 3),
        nn.LogSoftmax(-1),
    ).eval()


if __name__ == "__main__":
    rows = torch.export.Dim("rows")
    program = torch.onnx.export(build(), (torch.randn(2, 2, 3),), dynamo=True, dynamic_shapes=({0: rows},))
    assert program is not None
    model = program.model_proto
    # Stack traces hold paths of the machine that ran this.
    for part in (
        model,
        model.graph,
        *model.graph.node,
        *model.graph.value_info,
        *model.graph.input,
        *model.graph.output,
    ):
        del part.metadata_props[:]
    Path(__file__).with_name("dynamo.onnx").write_bytes(model.SerializeToString())
