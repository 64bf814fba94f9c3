# SPDX-License-Identifier: Apache-2.0
"""The static table, the plans made from it, and the rule that picks when nothing was timed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fused_mlp.kernels.cuda.check.jobs import jobs
from fused_mlp.kernels.cuda.check.models import EXAMPLES, FUNCTIONS, NORMS, SOFTMAXES, Sketch
from fused_mlp.kernels.cuda.planning.architectures import ARCHITECTURES, Architecture, architecture_of
from fused_mlp.kernels.cuda.planning.forward import ForwardPlan, Scratch, plan_forward
from fused_mlp.kernels.cuda.planning.launch_counts import eager_launches
from fused_mlp.kernels.cuda.planning.placement import Place, Y, place
from fused_mlp.kernels.cuda.planning.plans import layered_plans
from fused_mlp.kernels.cuda.planning.rule import candidate_tiles, tile_by_rule
from fused_mlp.kernels.cuda.planning.tiles import PRECISIONS, TILES, Precision
from fused_mlp.models import MlpSpec
from fused_mlp.models.importers.torch.writing import make_module
from fused_mlp.models.program.formula import PARAMETERS, parse
from fused_mlp.models.program.spec import INPUT
from tests.kernels.cuda.eager_program import CountingKernels
from tests.kernels.cuda.random_models import make_mlp, make_spec


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda entry: entry.name)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_width_up_to_256_has_a_single_launch_tile(
    architecture: Architecture, precision: Precision
) -> None:
    for width in range(1, 257):
        spec = make_spec((300, width, 300), dtype="float16" if precision == "half" else "float32")
        tiles = candidate_tiles(spec, architecture, tf32=precision == "tf32")
        whole = [tile for tile in tiles if tile.strategy == "whole"]
        assert whole[0].block_m == 16
        assert all(width <= tile.width < max(2 * width, 33) for tile in whole)
        assert any(tile.strategy == "layered" for tile in tiles)


@pytest.mark.parametrize("widths", [(20, 5), (20, 257, 5), (20, 4096, 5)])
def test_models_too_wide_or_without_hidden_layers_run_layered(widths: tuple[int, ...]) -> None:
    tiles = candidate_tiles(make_spec(widths, dtype="float16"), ARCHITECTURES[0])
    assert {tile.strategy for tile in tiles} == {"layered"}


def tower(width: int, hidden: int) -> MlpSpec:
    sketch = Sketch(width, "float16")
    h = sketch.linear(sketch.norm(INPUT, "layer"), hidden, "gelu")
    return sketch.spec(output=sketch.norm(sketch.combine("add", sketch.linear(h, width), INPUT), "layer"))


@pytest.mark.parametrize(
    ("spec", "width"),
    [
        # The input, its norm and the hidden layer are on the chip at once: in the room of two layers of that width.
        (tower(32, 64), 128),
        (tower(128, 256), 256),
        (tower(129, 256), 0),
        (tower(64, 257), 0),
    ],
    ids=lambda value: value.summary() if isinstance(value, MlpSpec) else str(value),
)
def test_program_gets_the_narrowest_tile_that_holds_its_live_values(spec: MlpSpec, width: int) -> None:
    tiles = candidate_tiles(spec, ARCHITECTURES[0])
    assert {tile.width for tile in tiles} == {width, 0}


def test_a_slice_is_read_and_a_part_of_a_concat_written_in_place() -> None:
    sketch = Sketch(40, "float32")
    halves = sketch.linear(sketch.part(INPUT, 0, 30), 100)
    gate = sketch.combine("multiply", sketch.part(halves, 0, 50), sketch.part(halves, 50, 100))
    joined = sketch.combine("concat", gate, sketch.linear(INPUT, 7, "relu"))
    spec = sketch.spec(output=sketch.linear(joined, 3), joined=joined)
    placement = place(spec)
    # The two products, the multiplication, the last product: no copies, and the outputs are made where they belong.
    assert [type(task.stage).__name__ for task in placement.tasks] == [
        "Product",
        "RowPass",
        "Product",
        "Product",
    ]
    assert placement.tasks[1].target == Place(Y, column=3, row=60)
    assert placement.tasks[2].target == Place(Y, column=53, row=60)
    assert placement.scratch == (112,)


def test_buffers_are_shared_by_values_that_are_not_needed_at_the_same_time() -> None:
    assert place(make_spec((5, 100, 20, 100, 20, 3))).scratch == (112, 32)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"block_m": 8}, "powers of two from 16"),
        ({"block_k": 48}, "powers of two from 16"),
        ({"warps": 3}, "warps"),
        ({"stages": 0}, "stages"),
        ({"width": 512}, "width <= 256"),
        ({"capabilities": (75,)}, "capabilities"),
        ({"width": 256, "chunk": 256, "stages": 3}, "262144 staged bytes exceed 166912 on sm_80"),
    ],
)
def test_impossible_row_is_refused_when_the_table_is_read(change: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        replace(TILES[0], **change)


@pytest.mark.parametrize(
    ("capability", "runs_as"),
    [(80, 80), (87, 86), (89, 89), (90, 90), (103, 100), (121, 120), (75, None), (110, None)],
)
def test_unlisted_device_runs_as_the_closest_older_one_of_its_generation(
    capability: int, runs_as: int | None
) -> None:
    found = architecture_of(capability)
    assert (found.capability if found else None) == runs_as


@pytest.mark.parametrize(
    ("spec", "rows", "label"),
    [
        (make_spec((64, 128, 128, 10)), 1, "whole/16"),
        (make_spec((64, 64, 64, 10), dtype="float16"), 4096, "whole/64"),
        (make_spec((64, 256, 10)), 64, "layered/16"),  # ieee, 256 wide: one multiprocessor is too slow
        (make_spec((64, 256, 10), dtype="float16"), 64, "whole/16"),
        (make_spec((64, *[256] * 12, 10), dtype="float16"), 64, "layered/16"),  # more than 1 MiB of weights
        (make_spec((8, *[8] * 16, 1), dtype="float16"), 64, "layered/16"),  # 17 layers: too long unrolled
        (make_spec((784, 512, 256, 10)), 64, "layered/16"),
        (make_spec((100, 10), dtype="bfloat16"), 2048, "layered/128"),
    ],
    ids=lambda value: value.summary() if isinstance(value, MlpSpec) else str(value),
)
def test_rule_by_width_depth_and_batch(spec: MlpSpec, rows: int, label: str) -> None:
    assert tile_by_rule(spec, ARCHITECTURES[0], rows).label == label


def test_check_compiles_every_row_on_every_architecture_that_can_select_it() -> None:
    compiled = {(job.capability, job.label, job.width, job.plan.warps, job.plan.stages) for job in jobs()}
    for tile in TILES:
        for capability in tile.capabilities:
            assert (capability, tile.label, tile.width, tile.warps, tile.stages) in compiled


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda entry: entry.name)
def test_check_compiles_every_function_and_norm_on_every_architecture(architecture: Architecture) -> None:
    mine = [job for job in jobs() if job.capability == architecture.capability]
    uses = {use for job in mine for use in job.uses}
    assert uses >= {f"gated {parse(name)}" for name in FUNCTIONS}
    assert uses >= {*(f"norm {kind}" for kind in NORMS), *SOFTMAXES, "add", "multiply"}
    # A softmax within a tile and one over several are different code, in `whole`; over rows, a kernel of its own.
    for softmax in SOFTMAXES:
        assert {(True, softmax), (False, softmax)} <= {
            (step.counts[0] <= step.block, step.norm)
            for job in mine
            if job.plan.kernel == "whole"
            for step in job.plan.constants["STEPS"]
            if step.kind == "stream"
        }
    assert {job.plan.kernel for job in mine if set(job.uses) & set(SOFTMAXES)} == {
        "whole",
        "layer",
        "row",
        "join",
    }
    assert {job.precision for job in mine if job.use.endswith("last")} >= {
        "float16",
        "bfloat16",
        "ieee",
        "tf32",
    }


def test_architectures_between_them_compile_every_function_in_every_role() -> None:
    uses = {use for job in jobs() for use in job.uses}
    functions = {parse(name).text for name in FUNCTIONS} - {"x"}
    assert uses >= functions
    assert uses >= {f"last {name}" for name in functions}
    layers = {use for job in jobs() if job.plan.kernel == "layer" for use in job.uses}
    assert layers >= {*SOFTMAXES, "add", "norm layer"}
    every = {instruction.op for name in functions for instruction in parse(name).instructions}
    assert every >= {*PARAMETERS, "add", "subtract", "multiply", "divide", "maximum", "minimum"} - {
        "identity"
    }


def test_check_compiles_programs_in_every_tile_that_takes_them() -> None:
    found = {(job.label, job.width, job.precision) for job in jobs() if job.use == "program"}
    for tile in TILES:
        if tile.strategy == "whole":
            precision = "float16" if tile.precision == "half" else tile.precision
            assert (tile.label, tile.width, precision) in found


def test_quick_check_has_every_kernel_and_every_way_to_multiply_on_every_architecture() -> None:
    for architecture in ARCHITECTURES:
        mine = [job for job in jobs(quick=True) if job.capability == architecture.capability]
        assert {job.plan.kernel for job in mine} == {"whole", "layer", "row", "part", "join"}
        assert {job.precision for job in mine} == {"float16", "bfloat16", "tf32", "ieee", "tf32x3"}


@pytest.mark.parametrize("spec", [*EXAMPLES[:5], *EXAMPLES[6:]], ids=lambda spec: spec.summary())
def test_eager_launches_are_what_eager_really_runs(spec: MlpSpec) -> None:
    module = make_module(
        make_mlp(MlpSpec.model_validate({**spec.model_dump(), "dtype": "float32"})), joined=True
    )
    x = torch.zeros(2, spec.in_features)
    with torch.inference_mode(), CountingKernels() as kernels:
        module(x)
    assert kernels.count == eager_launches(spec)


def test_geglu_block_takes_two_launches_where_eager_takes_five() -> None:
    spec = make_spec((768, 3072, 768), "gelu", gated=(True, False), dtype="bfloat16")
    tile = tile_by_rule(spec, ARCHITECTURES[0], rows=64)
    assert (len(layered_plans(spec, tile)), eager_launches(spec)) == (2, 5)


def forward(spec: MlpSpec, label: str, capability: int = 90) -> ForwardPlan:
    architecture = architecture_of(capability)
    assert architecture is not None
    tile = next(tile for tile in candidate_tiles(spec, architecture) if tile.label == label)
    return plan_forward(spec, tile)


def test_long_sums_of_small_batches_are_split_and_no_others() -> None:
    plan = forward(make_spec((1300, 40, 3)), "split/16")
    assert plan.max_launches == 3
    ran = {rows: [each.plan.kernel for each in plan.launches if each.plan.grid(rows)] for rows in (1, 16, 17)}
    assert ran == {1: ["part", "join", "layer"], 16: ["part", "join", "layer"], 17: ["layer", "layer"]}
    parts = plan.launches[0].plan
    assert parts.grid(1) == 2 * 3  # blocks of 32 columns, parts of 512 inputs
    assert plan.scratch[-1] == Scratch(row=3 * 64, element="fp32", max_rows=16)
    for shape in ((512, 40, 3), (1300, 64 * 32 + 1)):
        assert not any(tile.split for tile in candidate_tiles(make_spec(shape), ARCHITECTURES[0]))


def test_launches_after_the_first_overlap_from_sm_90_on() -> None:
    for rows in (1, 17):
        launches = [each.plan for each in forward(make_spec((1300, 40, 3)), "split/16").launches]
        ran = [plan for plan in launches if plan.grid(rows)]
        assert [plan.overlaps(90) for plan in ran] == [False] + [True] * (len(ran) - 1)
        assert all(plan.constants_for(90)["OVERLAP"] for plan in ran)
        assert not any(plan.overlaps(89) or plan.constants_for(89)["OVERLAP"] for plan in ran)


@pytest.mark.parametrize(
    ("widths", "layers"),
    [
        ((64, 64, 64, 64, 64, 10), [1, 3, 1]),
        ((64, 50, 64, 50, 10), [1, 1, 1, 1]),
        ((20, 128, 128, 128, 3), [1, 2, 1]),
    ],
)
def test_alike_layers_run_in_a_loop(widths: tuple[int, ...], layers: list[int]) -> None:
    """The first reads the input and the last writes the results: both are different."""
    plan = forward(make_spec(widths, dtype="float16"), "whole/16")
    steps = plan.launches[0].plan.constants["STEPS"]
    assert isinstance(steps, tuple)
    assert [step.layers for step in steps] == layers


def test_the_rule_takes_neither_split_nor_tf32x3() -> None:
    spec = make_spec((1300, 40, 40, 3))
    labels = {tile.label for tile in candidate_tiles(spec, ARCHITECTURES[0])}
    assert {"split/16", "whole-tf32x3/16", "layered-tf32x3/16", "split-tf32x3/16"} <= labels
    assert tile_by_rule(spec, ARCHITECTURES[0], 1).label == "whole/16"
    assert tile_by_rule(make_spec((1300, 512, 3)), ARCHITECTURES[0], 2048).label == "layered/64"
