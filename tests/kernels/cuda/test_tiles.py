"""The static table, the plans made from it, and the rule that picks when nothing was timed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fused_mlp.kernels.cuda.architectures import ARCHITECTURES, Architecture, architecture_of
from fused_mlp.kernels.cuda.check_jobs import Job, jobs
from fused_mlp.kernels.cuda.check_models import ACTIVATIONS, EXAMPLES, SOFTMAXES
from fused_mlp.kernels.cuda.plans import eager_launches, layered_plans
from fused_mlp.kernels.cuda.rule import tile_by_rule
from fused_mlp.kernels.cuda.tiles import PRECISIONS, TILES, Precision, select_tiles
from fused_mlp.models import MlpSpec
from tests.kernels.cuda.eager_program import CountingKernels
from tests.kernels.cuda.random_models import make_mlp, make_spec


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda entry: entry.name)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_width_up_to_256_has_a_single_launch_tile(
    architecture: Architecture, precision: Precision
) -> None:
    for width in range(1, 257):
        tiles = select_tiles(architecture, precision, width)
        whole = [tile for tile in tiles if tile.strategy == "whole"]
        assert whole[0].block_m == 16
        assert all(width <= tile.width < max(2 * width, 33) for tile in whole)
        assert any(tile.strategy == "layered" for tile in tiles)


@pytest.mark.parametrize("width", [0, 257, 4096])
def test_models_too_wide_or_without_hidden_layers_run_layered(width: int) -> None:
    assert {tile.strategy for tile in select_tiles(ARCHITECTURES[0], "half", width)} == {"layered"}


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
def test_check_compiles_every_activation_in_every_role_on_every_architecture(
    architecture: Architecture,
) -> None:
    mine = [job for job in jobs() if job.capability == architecture.capability]
    hidden = {name for job in mine for name in job.activations[:-1]}
    assert hidden >= {*ACTIVATIONS, *(f"gated {name}" for name in ACTIVATIONS)}
    assert {job.activations[-1] for job in mine} >= {*ACTIVATIONS, *SOFTMAXES}
    # A softmax within a tile and one over several are different code, in both strategies.
    in_tile = {(job.plan.kernel, job.activations[-1]) for job in mine if holds_whole_rows(job)}
    over_tiles = {(job.plan.kernel, job.activations[-1]) for job in mine if not holds_whole_rows(job)}
    for softmax in SOFTMAXES:
        assert {("whole", softmax), ("layer", softmax)} <= in_tile
        assert ("whole", softmax) in over_tiles
    assert {kernel for kernel, _ in over_tiles} == {"whole", "layer", "softmax"}
    assert {job.precision for job in mine if job.use.endswith("last")} >= {
        "float16",
        "bfloat16",
        "ieee",
        "tf32",
    }


def holds_whole_rows(job: Job) -> bool:
    constants = job.plan.constants
    return "BLOCK_N" in constants and constants["OUT"] <= constants["BLOCK_N"]


def test_architectures_between_them_compile_every_layer_kernel() -> None:
    layers = {name for job in jobs() if job.plan.kernel == "layer" for name in job.activations}
    assert layers >= {*ACTIVATIONS, *(f"gated {name}" for name in ACTIVATIONS), *SOFTMAXES}


def test_quick_check_has_every_kernel_and_every_way_to_multiply_on_every_architecture() -> None:
    for architecture in ARCHITECTURES:
        mine = [job for job in jobs(quick=True) if job.capability == architecture.capability]
        assert {job.plan.kernel for job in mine} == {"whole", "layer", "softmax"}
        assert {job.precision for job in mine} == {"float16", "bfloat16", "tf32", "ieee", "fp32"}


@pytest.mark.parametrize("spec", EXAMPLES[:5], ids=lambda spec: spec.summary())
def test_eager_launches_are_what_eager_really_runs(spec: MlpSpec) -> None:
    module = make_mlp(spec.model_copy(update={"dtype": "float32"})).to_torch()
    x = torch.zeros(2, spec.in_features)
    with torch.inference_mode(), CountingKernels() as kernels:
        module(x)
    assert kernels.count == eager_launches(spec)


def test_geglu_block_takes_two_launches_where_eager_takes_five() -> None:
    spec = make_spec((768, 3072, 768), "gelu", gated=(True, False), dtype="bfloat16")
    tile = tile_by_rule(spec, ARCHITECTURES[0], rows=64)
    assert (len(layered_plans(spec, tile)), eager_launches(spec)) == (2, 5)
