# SPDX-License-Identifier: Apache-2.0
"""The plan of `whole`: a program as a list of steps on tiles, with the place of every tensor in the two that it reads.
The kernel is compiled for it, packing follows it, and the rule asks it whether a program fits. Data only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from fused_mlp.kernels.cuda.planning.columns import Columns
from fused_mlp.kernels.cuda.planning.stages import RowPass, Stage, stages_of
from fused_mlp.kernels.cuda.planning.tiles import Tile
from fused_mlp.kernels.fusion import Product, count_uses
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.formula import Formula, parse
from fused_mlp.models.program.spec import INPUT, Affine, Gated, Linear, Norm, Softmax

MAX_LOOPED_TILES = 2
Kind = Literal["load", "product", "stream", "row", "store"]
_IDENTITY = parse("x")


@dataclass(frozen=True)
class WholeStep:
    """load: the input into tiles. product: a matrix times tiles (or the input, in parts, where `source` is empty) into
    tiles; `layers` of them alike, each of the result of the one before it. stream: a product into the results, in
    blocks, with a softmax over them. row: a row pass over tiles. store: tiles into the results.

    A tile is (step that made it, index). `counts` are the real columns of each tile of the result (store, load: of the
    source), `columns` where they are in the results or in the input; of a stream, where it begins. `n` and `k` are the
    sides of the packed matrix, `weights` and `vectors` its offset and that of biases, norms' weights and the like."""

    kind: Kind
    source: tuple[tuple[int, int], ...] = ()
    other: tuple[tuple[int, int], ...] = ()
    counts: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    gate: Formula | None = None
    function: Formula = _IDENTITY
    combine: str = ""
    swapped: bool = False
    then: Formula = _IDENTITY
    norm: str = ""
    eps: float = 0.0
    weight: bool = False
    bias: bool = False
    rounded: bool = True  # to the model's dtype; not where only the results get it
    layers: int = 1
    n: int = 0
    k: int = 0
    block: int = 0  # columns of a stream at a time
    weights: int = 0
    vectors: int = 0


@dataclass(frozen=True)
class Packed:
    """The tensors of a step: where they go, and where each of their rows and columns goes (None: as they are)."""

    tensors: Linear | Gated | Norm | Affine
    step: WholeStep
    out_counts: tuple[int, ...] | None
    in_counts: tuple[int, ...] | None


@dataclass(frozen=True)
class WholePlan:
    steps: tuple[WholeStep, ...]
    packed: tuple[Packed, ...]
    weights: int  # elements of the two tensors
    vectors: int
    held: int  # the most columns that are on the chip at once, padding included
    widest: int  # of one value


class _Planner:
    def __init__(self, spec: MlpSpec, tile: Tile) -> None:
        self.spec = spec
        self.tile = tile
        self.stages = stages_of(spec)
        self.columns = Columns(spec, self.stages, tile.chunk)
        self.uses = count_uses(spec, self.stages)
        self.outputs: dict[str, list[int]] = {}
        for output in spec.outputs:
            self.outputs.setdefault(output.value, []).append(spec.columns(output.name).start)
        self.steps: list[WholeStep] = []
        self.packed: list[Packed] = []
        self.made: dict[str, int] = {}  # value -> the step that made its tiles
        self.streamed: dict[str, str] = {}  # product -> the output that it is, or whose softmax is the output
        self.weights = self.vectors = 0

    def plan(self) -> WholePlan:
        for stage in self.stages:
            self._find_streamed(stage)
        if self._holds_input():
            self._add(INPUT, self._io("load", INPUT, 0))
        for stage in self.stages:
            if isinstance(stage, Product):
                self._product(stage)
            elif isinstance(stage, RowPass) and stage.source not in self.streamed:
                self._row(stage)
        for value, places in self.outputs.items():
            if value not in self.streamed.values():
                for place in places:
                    self.steps.append(self._io("store", value, place))
        return WholePlan(
            tuple(self.steps), tuple(self.packed), self.weights, self.vectors, self._held(), self._widest()
        )

    def _find_streamed(self, stage: Stage) -> None:
        """A product that only the results need is never held, however wide; nor one with a softmax after it."""
        if isinstance(stage, Product) and stage.combined is None and self._only_output(stage.name):
            self.streamed[stage.name] = stage.name
        if (
            isinstance(stage, RowPass)
            and isinstance(stage.normalized, Softmax)
            and stage == RowPass(stage.name, stage.source, stage.normalized)
            and self._only_output(stage.name)
            and self.uses[stage.source] == 1
        ):
            product = next((each for each in self.stages if each.name == stage.source), None)
            if isinstance(product, Product) and product.combined is None:
                self.streamed[product.name] = stage.name

    def _only_output(self, value: str) -> bool:
        return self.uses[value] == 1 and len(self.outputs.get(value, ())) == 1

    def _holds_input(self) -> bool:
        if INPUT in self.outputs:
            return True
        return any(
            INPUT in (stage.sources[1:] if isinstance(stage, Product) else stage.sources)
            for stage in self.stages
        )

    def _add(self, value: str, step: WholeStep) -> None:
        self.made[value] = len(self.steps)
        self.steps.append(step)

    def _tiles(self, value: str) -> tuple[tuple[int, int], ...]:
        return tuple((self.made[name], index) for name, index in self.columns.references(value))

    def _io(self, kind: Kind, value: str, start: int) -> WholeStep:
        counts = self.columns.counts(value)
        columns = tuple(accumulate(counts[:-1], initial=start))
        source = self._tiles(value) if kind == "store" else ()
        return WholeStep(kind, source=source, counts=counts, columns=columns)

    def _product(self, stage: Product) -> None:
        gate = stage.step.formula if isinstance(stage.step, Gated) else None
        from_input = stage.step.input == INPUT
        in_counts = None if from_input else self.columns.counts(stage.step.input)
        k = pad(self.spec.in_features, self.tile.block_k)
        if in_counts is not None:
            k = len(in_counts) * self.tile.chunk
        result = self.streamed.get(stage.name)
        step = WholeStep(
            "product",
            source=() if from_input else self._tiles(stage.step.input),
            gate=gate,
            function=stage.function,
            k=k,
            weights=self.weights,
            vectors=self.vectors,
        )
        out_counts = None
        if result is not None:
            block = last_block(stage.step.out_features, self.tile)
            softmax = next((each for each in self.stages if each.name == result != stage.name), None)
            assert softmax is None or isinstance(softmax, RowPass)
            step = replace(
                step,
                kind="stream",
                counts=(stage.step.out_features,),
                columns=tuple(self.outputs[result]),
                norm="" if softmax is None or softmax.normalized is None else softmax.normalized.op,
                n=pad(stage.step.out_features, block),
                block=block,
            )
            self.steps.append(step)
        else:
            out_counts = self.columns.counts(stage.name)
            step = replace(step, counts=out_counts, n=len(out_counts) * self.tile.chunk)
            step = self._combined(step, stage)
            if self._continues(step, stage):
                before = self.steps.pop()
                self._add(stage.name, replace(before, layers=before.layers + 1))
            else:
                self._add(stage.name, step)
        self.packed.append(Packed(stage.step, step, out_counts, in_counts))
        self.weights += step.n * step.k * (1 if gate is None else 2)
        self.vectors += step.n * (1 if gate is None else 2)

    def _continues(self, step: WholeStep, stage: Product) -> bool:
        """Whether it is one more layer like the step before it, of whose result nothing else is made. Such layers run
        in a loop, in which Triton copies weights ahead (cp.async), the next layer's too; not so from step to step.
        (Values of more tiles have a loop over tiles, and spill if it goes on over layers.)"""
        before, number = self.steps[-1] if self.steps else None, len(self.steps) - 1
        if before is None or not before.source or step.combine or self.uses[stage.step.input] != 1:
            return False
        if len(step.counts) > MAX_LOOPED_TILES:
            return False
        alike = replace(
            step, source=before.source, weights=before.weights, vectors=before.vectors, layers=before.layers
        )
        return alike == before and step.source == tuple(
            (number, index) for index in range(len(before.counts))
        )

    def _row(self, stage: RowPass) -> None:
        counts = self.columns.counts(stage.name)
        scaled = stage.scaled
        step = WholeStep(
            "row",
            source=self._tiles(stage.source),
            counts=counts,
            function=stage.function,
            norm="" if stage.normalized is None else norm_name(stage.normalized),
            eps=stage.normalized.eps if isinstance(stage.normalized, Norm) else 0.0,
            weight=scaled is not None and scaled.weight,
            bias=scaled is not None and scaled.bias,
            rounded=self.uses[stage.name] > len(self.outputs.get(stage.name, ())),
            n=len(counts) * self.tile.chunk,
            vectors=self.vectors,
        )
        step = self._combined(step, stage)
        self._add(stage.name, step)
        if scaled is not None:
            self.packed.append(Packed(scaled, step, counts, None))
            self.vectors += 2 * step.n

    def _combined(self, step: WholeStep, stage: Product | RowPass) -> WholeStep:
        if stage.combined is None:
            return replace(step, then=stage.then)
        combined = stage.combined
        other = self._tiles(combined.other)
        return replace(step, other=other, combine=combined.op, swapped=combined.swapped, then=stage.then)

    def _held(self) -> int:
        last = {step: index for index, each in enumerate(self.steps) for step, _ in each.source + each.other}
        most = 0
        for index, each in enumerate(self.steps):
            live = [made for made, end in last.items() if made < index <= end]
            own = each.n if each.kind in ("product", "row") else 0
            own = len(each.counts) * self.tile.chunk if each.kind == "load" else own
            tiles = sum(len(self.steps[made].counts) for made in live)
            most = max(most, tiles * self.tile.chunk + own)
        return most

    def _widest(self) -> int:
        widths = [len(each.counts) for each in self.steps if each.kind in ("load", "product", "row")]
        return max(widths, default=0) * self.tile.chunk


@lru_cache(maxsize=256)
def plan_whole(spec: MlpSpec, tile: Tile) -> WholePlan:
    return _Planner(spec, tile).plan()


def fits(plan: WholePlan, tile: Tile) -> bool:
    """A tile is made for layers of its width, of which two are on the chip at once: the one that is read and the one
    that is made. Programs get the same room. A single step is one launch anyway."""
    room = tile.room if any(step.kind == "row" for step in plan.steps) else 2 * tile.width
    return len(plan.steps) > 1 and plan.widest <= tile.width and plan.held <= room


def norm_name(step: Norm | Softmax) -> str:
    return step.kind if isinstance(step, Norm) else step.op


def last_block(out_features: int, tile: Tile) -> int:
    """A handful of outputs (a classifier's) would waste most of a full tile."""
    return min(tile.block_n, 16) if out_features <= 16 else tile.block_n


def pad(size: int, block: int) -> int:
    return -(-size // block) * block
