# SPDX-License-Identifier: Apache-2.0
"""`cublas`: torch's GEMMs and operators under a CUDA graph, the candidate to beat on large widths. Imports no
triton."""

from __future__ import annotations

import torch
from torch import Tensor

from fused_mlp.kernels.cuda.planning.launch_counts import function_launches, step_launches
from fused_mlp.kernels.cuda.running.program import Allocate
from fused_mlp.kernels.fusion import FusedStep, Product, fuse
from fused_mlp.kernels.lookups import Lookups, Part, lookups_of
from fused_mlp.models import Mlp
from fused_mlp.models.importers.torch.formulas import FUNCTIONS
from fused_mlp.models.importers.torch.modules import function_module
from fused_mlp.models.importers.torch.steps import bag, compute, ids_of
from fused_mlp.models.importers.torch.tensors import TORCH_DTYPES, to_tensor
from fused_mlp.models.program.formula import Formula
from fused_mlp.models.program.spec import INPUT, Elementwise, Gated


class CublasProgram:
    """Bias always, relu and tanh-gelu where they can, in the GEMM's epilogue; a gated product multiplies by
    both of its matrices at once. Temporaries come from the graph's private pool."""

    label = "cublas"
    any_rows = False  # it picks another algorithm, with another order of sums, for another number of rows

    def __init__(self, mlp: Mlp, device: torch.device) -> None:
        self._gather = None
        lookups = lookups_of(mlp.spec)
        if lookups is not None:
            self._gather = TorchGather(mlp, lookups, device)
            mlp = lookups.rest_of(mlp)
        spec = mlp.spec
        self._outputs = [(output.value, spec.columns(output.name)) for output in spec.outputs]
        self._dtype = TORCH_DTYPES[spec.dtype]
        self._steps = fuse(spec)
        self._tensors = _tensors(mlp, self._steps, device)
        last: dict[str, int] = {}
        for index, step in enumerate(self._steps):
            last.update(dict.fromkeys(step.sources, index))
        kept = {value for value, _ in self._outputs}
        # Values that no later step reads are let go, so that the graph's pool uses their memory again.
        self._done = [
            [name for name, at in last.items() if at == index and name not in kept]
            for index in range(len(self._steps))
        ]
        # The copies to y, and the cast of x.
        self.launches = len(self._outputs) + (spec.dtype != "float32")
        self.launches += sum(_launches(step, device) for step in self._steps)
        self.launches += 0 if self._gather is None else self._gather.launches

    @property
    def memory_bytes(self) -> int:
        kept = sum(each.nbytes for pair in self._tensors.values() for each in pair if each is not None)
        return kept + (0 if self._gather is None else self._gather.memory_bytes)

    def workspace(self, rows: int, allocate: Allocate) -> tuple[Tensor, ...]:
        return ()

    @torch.inference_mode()
    def enqueue(self, x: Tensor, y: Tensor, rows: int, workspace: tuple[Tensor, ...]) -> None:
        given = x[:rows] if self._gather is None else self._gather(x[:rows])
        values = {INPUT: given.to(self._dtype)}
        for step, done in zip(self._steps, self._done, strict=True):
            values[step.name] = self._run(step, [values[source] for source in step.sources])
            for name in done:
                del values[name]
        for value, columns in self._outputs:
            y[:rows, columns].copy_(values[value])

    def _run(self, step: FusedStep, sources: list[Tensor]) -> Tensor:
        if isinstance(step, Product):
            return self._product(step, sources)
        if isinstance(step, Elementwise):
            return _apply(step.formula, sources[0])
        weight, bias = self._tensors.get(step.prefix, (None, None))
        return compute(step, sources, {"weight": weight, "bias": bias}.get)

    def _product(self, step: Product, sources: list[Tensor]) -> Tensor:
        x = sources[0]
        weight, bias = self._tensors[step.step.prefix]
        assert weight is not None
        assert bias is not None
        function = step.function
        if isinstance(step.step, Gated):
            up, gate = torch.addmm(bias, x, weight.t()).chunk(2, dim=1)
            x = _apply(step.step.formula, gate) * up
        elif _in_epilogue(step, x.device):
            x = torch._addmm_activation(bias, x, weight.t(), use_gelu=function.text == "gelu_tanh")
        else:
            x = torch.addmm(bias, x, weight.t())
        if not _in_epilogue(step, x.device):
            x = _apply(function, x)
        if step.combined is not None:
            pair = (sources[1], x) if step.combined.swapped else (x, sources[1])
            x = _combine(step.combined.op, *pair)
        return _apply(step.then, x)


class TorchGather:
    """The lookups of a program with torch's operators: a dense row of each record."""

    def __init__(self, mlp: Mlp, lookups: Lookups, device: torch.device) -> None:
        tensors = mlp.tensors()
        self._tables = {name: to_tensor(tensors[name]).to(device) for name in lookups.tables}
        self._parts = lookups.parts

    @property
    def memory_bytes(self) -> int:
        return sum(table.nbytes for table in self._tables.values())

    @property
    def launches(self) -> int:
        return 1 + sum(2 if part.table else 0 for part in self._parts)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([self._part(part, x) for part in self._parts], 1)

    def _part(self, part: Part, x: Tensor) -> Tensor:
        words = x[:, part.word : part.word + part.count]
        if not part.table:
            return words
        factors = None if part.factors < 0 else x[:, part.factors : part.factors + part.count]
        table = self._tables[part.table]
        return bag(ids_of(words), table, part.mode, part.padding, factors, dtype=torch.float32)


def _tensors(
    mlp: Mlp, steps: tuple[FusedStep, ...], device: torch.device
) -> dict[str, tuple[Tensor | None, Tensor | None]]:
    """Weight and bias by the prefix of their names; both halves of a gate in one, a missing bias of a product zero."""
    found: dict[str, tuple[Tensor | None, Tensor | None]] = {}
    for each in steps:
        step = each.step if isinstance(each, Product) else each
        if step.prefix in found or not step.shapes(mlp.spec.source_widths(step)):
            continue
        halves = ("", "gate_") if isinstance(step, Gated) else ("",)
        pair: list[Tensor | None] = []
        for name in ("weight", "bias"):
            parts = [mlp.tensor(step, f"{half}{name}") for half in halves]
            tensors = [to_tensor(part) for part in parts if part is not None]
            pair.append(torch.cat(tensors).to(device) if tensors else None)
        if isinstance(each, Product) and pair[1] is None:
            assert pair[0] is not None
            pair[1] = torch.zeros(pair[0].shape[0], dtype=pair[0].dtype, device=device)
        found[step.prefix] = (pair[0], pair[1])
    return found


def _apply(formula: Formula, x: Tensor) -> Tensor:
    if formula.is_identity:
        return x
    result: Tensor = function_module(formula)(x)
    return result


def _combine(op: str, a: Tensor, b: Tensor) -> Tensor:
    result: Tensor = FUNCTIONS[op](a, b)
    return result


def _in_epilogue(product: Product, device: torch.device) -> bool:
    """torch's fused GELU is the tanh form on CUDA (and the exact one on a CPU), so exact GELU runs on its
    own."""
    if isinstance(product.step, Gated):
        return False
    name = product.function.text
    return name == "relu" or (name == "gelu_tanh" and device.type == "cuda")


def _launches(step: FusedStep, device: torch.device) -> int:
    if not isinstance(step, Product):
        return step_launches(step)
    count = 1 + function_launches(step.then) + (step.combined is not None)
    if isinstance(step.step, Gated):
        count += function_launches(step.step.formula) + 1
    return count + (0 if _in_epilogue(step, device) else function_launches(step.function))
