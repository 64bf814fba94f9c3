"""`cublas`: torch's GEMMs under a CUDA graph, the candidate to beat on large widths. Imports no triton."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fused_mlp.kernels.cuda.program import Allocate
from fused_mlp.models import LayerSpec, Mlp
from fused_mlp.models.importers.torch_modules import activation_module
from fused_mlp.models.importers.torch_tensors import TORCH_DTYPES, to_tensor


class CublasProgram:
    """Bias always, relu and tanh-gelu where they can, in the GEMM's epilogue; a gated layer multiplies by
    both of its matrices at once. Temporaries come from the graph's private pool."""

    label = "cublas"

    def __init__(self, mlp: Mlp, device: torch.device) -> None:
        spec = mlp.spec
        self._dtype = TORCH_DTYPES[spec.dtype]
        self._layers: list[tuple[LayerSpec, Tensor, Tensor, nn.Module]] = []
        self.launches = 1 + (spec.dtype != "float32")  # the copy to y; the cast of x
        for layer, weights in zip(spec.layers, mlp.layers, strict=True):
            matrices, biases = [weights.weight], [weights.bias]
            if weights.gate_weight is not None:
                matrices.append(weights.gate_weight)
                biases.append(weights.gate_bias)
            zero = torch.zeros(layer.out_features, dtype=self._dtype)
            weight = torch.cat([to_tensor(matrix) for matrix in matrices]).to(device)
            bias = torch.cat([zero if entry is None else to_tensor(entry) for entry in biases]).to(device)
            self._layers.append(
                (layer, weight, bias, activation_module(layer.activation, layer.negative_slope))
            )
            separate = layer.activation != "identity" and not (
                not layer.gated and _in_epilogue(layer, device)
            )
            self.launches += 1 + separate + layer.gated
        self._output = activation_module(spec.output_activation, spec.output_negative_slope)
        self.launches += spec.output_activation != "identity"

    def workspace(self, rows: int, allocate: Allocate) -> tuple[Tensor, ...]:
        return ()

    @torch.inference_mode()
    def enqueue(self, x: Tensor, y: Tensor, rows: int, workspace: tuple[Tensor, ...]) -> None:
        h = x[:rows].to(self._dtype)
        for layer, weight, bias, activation in self._layers:
            if layer.gated:
                up, gate = torch.addmm(bias, h, weight.t()).chunk(2, dim=1)
                h = activation(gate) * up
            elif _in_epilogue(layer, h.device):
                h = torch._addmm_activation(bias, h, weight.t(), use_gelu=layer.activation == "gelu_tanh")
            else:
                h = activation(torch.addmm(bias, h, weight.t()))
        y[:rows].copy_(self._output(h))


def _in_epilogue(layer: LayerSpec, device: torch.device) -> bool:
    """torch's fused GELU is the tanh form on CUDA (and the exact one on a CPU), so exact GELU runs on its
    own."""
    return layer.activation == "relu" or (layer.activation == "gelu_tanh" and device.type == "cuda")
