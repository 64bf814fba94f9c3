# SPDX-License-Identifier: Apache-2.0
"""Scales and shifts beside a matrix product become part of it: those of an affine step, and the weight and bias of a
norm. Computed in float64 and rounded once; what leaves the range of float32 is left as it was."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.kernels.base import Float32
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.spec import Affine, Gated, Linear, Norm, Step

Tensors = Mapping[str, Float32]
# Smaller weights are no normal numbers, or soon would not be: folding could lose what they hold.
_SMALLEST = 1e-30


def fold(spec: MlpSpec, tensors: Tensors, fixed: Collection[str] = frozenset()) -> tuple[MlpSpec, Tensors]:
    """An equal program with fewer scales and shifts. The steps that are not folded keep their tensors. `fixed`: names
    of matrices that stay as they are."""
    if not any(isinstance(step, (Affine, Norm)) for step in spec.steps):
        return spec, tensors
    folding = _Folding(spec, tensors, fixed)
    folding.run()
    if not folding.changed:
        return spec, tensors
    folded = MlpSpec(
        in_features=spec.in_features,
        inputs=spec.inputs,
        steps=tuple(folding.steps.values()),
        outputs=spec.outputs,
    )
    return folded, {**tensors, **folding.made}


class _Folding:
    def __init__(self, spec: MlpSpec, tensors: Tensors, fixed: Collection[str]) -> None:
        self.fixed = fixed
        self.steps: dict[str, Step] = {step.name: step for step in spec.steps}
        self.tensors = tensors
        self.made: dict[str, Float32] = {}
        self.outputs = {output.value for output in spec.outputs}
        self.readers: dict[str, list[str]] = {}
        for step in spec.steps:
            for source in step.sources:
                self.readers.setdefault(source, []).append(step.name)
        self.prefixes = {step.prefix for step in spec.steps}

    @property
    def changed(self) -> bool:
        return bool(self.made)

    def run(self) -> None:
        for name in list(self.steps):
            step = self.steps[name]
            if isinstance(step, Affine):
                if not self._into_product_before(step):
                    self._into_products_after(step)
            elif isinstance(step, Norm) and (step.weight or step.bias):
                self._into_products_after(step)

    def _into_product_before(self, step: Affine) -> bool:
        before = self.steps.get(step.input)
        if (
            not isinstance(before, Linear)
            or before.name in self.outputs
            or self.readers[step.input] != [step.name]
            or self._is_fixed(before)
        ):
            return False
        weight, bias = self._get(before, "weight"), self._get(before, "bias")
        assert weight is not None
        scale, shift = self._get(step, "weight"), self._get(step, "bias")
        if scale is not None:
            weight = weight * scale[:, None]
            bias = None if bias is None else bias * scale
        total = _sum(bias, shift)
        fields = {"weight": weight} | ({} if total is None else {"bias": total})
        # The product takes the place of the affine step, so that all that read it find it.
        return self._replace(before, step.name, before.input, fields, drop=before.name)

    def _into_products_after(self, step: Affine | Norm) -> None:
        readers = [self.steps[name] for name in self.readers.get(step.name, [])]
        if (
            step.name in self.outputs
            or not readers
            or not all(isinstance(r, (Linear, Gated)) and not self._is_fixed(r) for r in readers)
        ):
            return
        scale, shift = self._get(step, "weight"), self._get(step, "bias")
        source = step.input if isinstance(step, Affine) else step.name
        planned = []
        for reader in readers:
            fields = {}
            for half in ("", "gate_") if isinstance(reader, Gated) else ("",):
                weight, bias = self._get(reader, f"{half}weight"), self._get(reader, f"{half}bias")
                assert weight is not None
                total = _sum(bias, None if shift is None else weight @ shift)
                fields[f"{half}weight"] = weight if scale is None else weight * scale
                if total is not None:
                    fields[f"{half}bias"] = total
            planned.append((reader, fields))
        if not all(_fits(array) for _, fields in planned for array in fields.values()):
            return
        for reader, fields in planned:
            self._replace(reader, reader.name, source, fields)
        if isinstance(step, Norm):
            self.steps[step.name] = step.model_copy(update={"weight": False, "bias": False})
            return
        del self.steps[step.name]
        self.readers[step.input] = [name for name in self.readers[step.input] if name != step.name]
        self.readers[step.input] += [reader.name for reader in readers]

    def _replace(
        self,
        step: Step,
        name: str,
        source: str,
        fields: dict[str, NDArray[np.float64]],
        drop: str | None = None,
    ) -> bool:
        """`step` under another name, with another input and tensors of its own."""
        if not all(_fits(array) for array in fields.values()):
            return False
        prefix = f"folded.{len(self.made)}"
        while prefix in self.prefixes:
            prefix += "_"
        self.prefixes.add(prefix)
        for each, array in fields.items():
            self.made[f"{prefix}.{each}"] = np.ascontiguousarray(array, np.float32)
        update: dict[str, Any] = {"name": name, "input": source, "weights": prefix, "bias": "bias" in fields}
        self.steps[name] = step.model_copy(update=update)
        if drop is not None:
            del self.steps[drop]
            self.readers[source] = [name if reader == drop else reader for reader in self.readers[source]]
        return True

    def _is_fixed(self, step: Step) -> bool:
        return f"{step.prefix}.weight" in self.fixed or f"{step.prefix}.gate_weight" in self.fixed

    def _get(self, step: Step, name: str) -> NDArray[np.float64] | None:
        key = f"{step.prefix}.{name}"
        array = self.made.get(key, self.tensors.get(key))
        return None if array is None else array.astype(np.float64)


def _sum(bias: NDArray[np.float64] | None, shift: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    if bias is None or shift is None:
        return shift if bias is None else bias
    return bias + shift


def _fits(array: NDArray[np.float64]) -> bool:
    """Whether float32 holds it as well as float64 does."""
    size = np.abs(array)
    return bool(np.all((size == 0) | ((size > _SMALLEST) & (size < np.finfo(np.float32).max))))
