# SPDX-License-Identifier: Apache-2.0
"""`fused_mlp.fuse_mlps`: every MLP inside a larger model, such as the feed-forward blocks of a transformer, replaced by
a FusedMLP of it. Owns which modules are tried; what an MLP is, `fused_mlp.from_torch` says."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fused_mlp.kernels.errors import KernelError
from fused_mlp.kernels.nn.fused_module import FusedMLP
from fused_mlp.models import ModelLoadError
from fused_mlp.models.program.spec import Gated, Linear

log = logging.getLogger(__name__)

# A single product has nothing to be fused with but its activation, and may be read by other code (`lm_head.weight`).
_FEWEST_PRODUCTS = 2


@dataclass
class Fusion:
    """The result of `fuse_mlps`; prints as a list.

    Attributes:
        model: The model that was given, unless it is an MLP itself: then the FusedMLP in its place.
        replaced: By path in the model: what the MLP there computes.
        kept: By path in the model: why the module there was not replaced.
    """

    model: nn.Module
    replaced: dict[str, str] = field(default_factory=dict)  # path -> summary
    kept: dict[str, str] = field(default_factory=dict)  # path -> why

    def __str__(self) -> str:
        lines = [f"replaced {len(self.replaced)} MLPs, kept {len(self.kept)} other modules"]
        lines += [f"  {path or 'the model'}: {summary}" for path, summary in self.replaced.items()]
        lines += [f"  {path or 'the model'} stays: {reason}" for path, reason in self.kept.items()]
        return "\n".join(lines)

    __repr__ = __str__


def fuse_mlps(model: nn.Module, *, backend: str = "auto", threads: int | None = None) -> Fusion:
    """Replace every MLP inside a larger model, such as the feed-forward blocks of a transformer, by a `FusedMLP` of it.

    Works in place: each largest submodule that is an MLP over the last dimension of its input is replaced by one that
    shares its parameters under the same names. Where weights are folded (BatchNorm), the names of its parameters
    change: see `FusedMLP`. Dropout and statistics of a batch exist in the modules only: call this on a model in eval
    mode.

    Args:
        model: The model, in eval mode.
        backend: As for `fused_mlp.compile`.
        threads: Of one call. Default: as `torch.set_num_threads` says.

    Returns:
        What was replaced, and what was not and why. Print it.

    Examples:
        >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 64, batch_first=True)
        >>> block = torch.nn.Sequential(layer.linear1, torch.nn.ReLU(), layer.linear2)
        >>> print(fused_mlp.fuse_mlps(torch.nn.ModuleDict({"mlp": block}).eval()))
        replaced 1 MLPs, kept 0 other modules
          mlp: 16-64-16 relu
    """
    walk = _Walk(backend, threads)
    walk.result.model = walk.visit(model, "")
    return walk.result


class _Walk:
    def __init__(self, backend: str, threads: int | None) -> None:
        self._backend, self._threads = backend, threads
        self._made: dict[int, nn.Module] = {}  # of modules that are in several places
        self._refused: dict[Any, str] = {}  # by what is the same in every block of a model
        self.result = Fusion(nn.Identity())

    def visit(self, module: nn.Module, path: str) -> nn.Module:
        """The module to have there."""
        if id(module) in self._made:
            return self._made[id(module)]
        if isinstance(module, FusedMLP) or _matrices(module) < _FEWEST_PRODUCTS:
            return module
        reason = self._try(module, path)
        if not reason:
            return self._made[id(module)]
        before = len(self.result.replaced) + len(self.result.kept)
        for name, child in list(module.named_children()):
            replaced = self.visit(child, f"{path}.{name}" if path else name)
            if replaced is not child:
                setattr(module, name, replaced)
        own = [name for name, child in module.named_children() if isinstance(child, nn.Linear)]
        if len(self.result.replaced) + len(self.result.kept) == before:  # nothing inside it says why
            self.result.kept[path] = reason
        elif len(own) >= _FEWEST_PRODUCTS and not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            self.result.kept[path] = f"{reason}; so do its own {', '.join(own)}"
        self._made[id(module)] = module
        return module

    def _try(self, module: nn.Module, path: str) -> str:
        """Why it is no MLP; empty if it is replaced."""
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)) or _inputs(module) != 1:
            return f"{type(module).__name__} does not take one tensor"
        kind = (
            tuple((name, type(part), part.extra_repr()) for name, part in module.named_modules()),
            tuple((name, p.shape) for name, p in module.named_parameters()),
        )
        if kind in self._refused:
            return self._refused[kind]
        try:
            fused = FusedMLP.from_torch(module, backend=self._backend, threads=self._threads)
        except (ModelLoadError, KernelError) as error:
            self._refused[kind] = str(error)
            return str(error)
        except Exception as error:  # a user's forward: the other blocks are still replaced
            log.exception("%s could not be read", path)
            self._refused[kind] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            return self._refused[kind]
        products = [step for step in fused.spec.steps if isinstance(step, (Linear, Gated))]
        if fused.rows_only:
            self._refused[kind] = "it takes (rows, features) only"
        elif len(products) + sum(isinstance(step, Gated) for step in products) < _FEWEST_PRODUCTS:
            self._refused[kind] = "it is one matrix product"
        else:
            folded = f" (folded: {', '.join(fused.folded)})" if fused.folded else ""
            self.result.replaced[path] = fused.spec.summary() + folded
            self._made[id(module)] = fused
            return ""
        return self._refused[kind]


def _matrices(module: nn.Module) -> int:
    return sum(parameter.dim() == 2 for parameter in module.parameters())


def _inputs(module: nn.Module) -> int:
    """How many arguments its forward must have."""
    parameters = inspect.signature(module.forward).parameters.values()
    return sum(
        each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        for each in parameters
    )
