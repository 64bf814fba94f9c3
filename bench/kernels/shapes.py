"""The models the kernel benchmark runs, as specs with random weights. Knows no engine."""

from __future__ import annotations

import torch

from fused_mlp.models import Activation, LayerSpec, LayerWeights, Mlp, MlpSpec

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def _plain(widths: tuple[int, ...], activation: Activation) -> MlpSpec:
    hidden = [LayerSpec(out_features=width, activation=activation) for width in widths[1:-1]]
    return MlpSpec(in_features=widths[0], layers=(*hidden, LayerSpec(out_features=widths[-1])))


SHAPES: dict[str, MlpSpec] = {
    "64-128-128-10 relu": _plain((64, 128, 128, 10), "relu"),
    "784-512-256-10 relu": _plain((784, 512, 256, 10), "relu"),
    "128x8 deep silu": _plain((128,) * 9, "silu"),
    "256-1024-1024-256 gelu": _plain((256, 1024, 1024, 256), "gelu"),
    "1024-4096-1024 gelu": _plain((1024, 4096, 1024), "gelu"),
    "GeGLU 768-3072-768": MlpSpec(
        in_features=768,
        layers=(
            LayerSpec(out_features=3072, activation="gelu", gated=True),
            LayerSpec(out_features=768),
        ),
    ),
}


def build(name: str) -> Mlp:
    """The same weights in every process."""
    spec = SHAPES[name]
    generator = torch.Generator().manual_seed(1)
    layers = []
    for fan_in, layer in zip(spec.widths, spec.layers, strict=False):

        def tensor(*shape: int, scale: float = fan_in**-0.5) -> torch.Tensor:
            return torch.randn(*shape, generator=generator) * scale

        out = layer.out_features
        gate = (tensor(out, fan_in), tensor(out)) if layer.gated else (None, None)
        layers.append(LayerWeights(tensor(out, fan_in), tensor(out), *gate))
    return Mlp(spec, tuple(layers))


def multiply_adds(name: str) -> int:
    """Per row."""
    spec = SHAPES[name]
    return sum(
        fan_in * layer.out_features * (2 if layer.gated else 1)
        for fan_in, layer in zip(spec.widths, spec.layers, strict=False)
    )
