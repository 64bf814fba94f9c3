# SPDX-License-Identifier: Apache-2.0
"""One row of the zoo: a module as its author wrote it, and what from_torch should make of it. Owns the registry and
how modules are made and answered; knows nothing of importers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Entry:
    """`shape` is that of one row. `example`: the width cannot be seen in the module, so that the user has to give one.
    `refused`: words of the refusal where the module is no MLP, or (`gap`) is one that we do not take yet."""

    name: str
    factory: Callable[[], nn.Module]
    shape: tuple[int, ...]
    example: bool = False
    refused: str | None = None
    gap: bool = False

    @property
    def is_mlp(self) -> bool:
        return self.refused is None or self.gap

    def make(self) -> nn.Module:
        """The same module each time, in eval mode, no weight, bias or statistic left at a value (0 or 1) that would
        hide a mistake."""
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations of the packages that we did not write
            module = self.factory().eval()
        with torch.no_grad():
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                if name.endswith("running_var"):
                    tensor.uniform_(0.5, 2)
                elif tensor.is_floating_point() and (name.endswith("running_mean") or _is_constant(tensor)):
                    tensor.add_(torch.randn_like(tensor), alpha=0.2)
        return module

    def rows(self, count: int) -> Tensor:
        """(count, *shape) float32; positive and negative, some of them large."""
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(count, *self.shape, generator=generator)
        x[count // 2 :] *= 3
        return x

    def input(self) -> Tensor | None:
        return self.rows(2) if self.example else None


def _is_constant(tensor: Tensor) -> bool:
    return tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all())


def answer(module: nn.Module, x: Tensor) -> dict[str, np.ndarray]:
    """What the module itself says, by name of the output: (rows, features) each. In float64, except for modules that
    cast their input to float32."""
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = module.double()(x.double())
        except RuntimeError:
            made = module.float()(x)
    if isinstance(made, Mapping):
        named = dict(made)
    elif isinstance(made, (tuple, list)):
        names = getattr(made, "_fields", range(len(made)))
        named = dict(zip(map(str, names), made, strict=True))
    else:
        named = {"output": made}
    return {name: each.reshape(len(x), -1).numpy() for name, each in named.items()}


ZOO: list[Entry] = []


def model(
    *shape: int, name: str = "", example: bool = False, refused: str | None = None, gap: bool = False
) -> Callable[[Any], Any]:
    """Adds a class, or a function that makes a module, to the zoo."""

    def add(factory: Any) -> Any:
        ZOO.append(Entry(name or factory.__name__, factory, shape, example, refused, gap))
        return factory

    return add
