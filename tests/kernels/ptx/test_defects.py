# SPDX-License-Identifier: Apache-2.0
"""Defects put into compiled kernels by hand: the interpreter must notice every one of them, by an error or by a result
that is not the kernel's."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

pytest.importorskip("triton")

import torch

from fused_mlp.kernels.cuda.planning.architectures import architecture_of
from fused_mlp.kernels.cuda.planning.rule import candidate_tiles
from fused_mlp.kernels.cuda.running.triton_programs import Binary, TritonProgram
from fused_mlp.models import Mlp
from fused_mlp.models.program.evaluation import evaluate
from tests.kernels.cuda import compiled
from tests.kernels.cuda.random_models import make_mlp, make_spec
from tests.support.ptx import BadAccess, PtxError, Race, Stuck

# The input is wider than a step of K: its loop copies ahead. The output is wider than a tile: softmax in two sweeps.
SPEC = make_spec((300, 40, 70), "silu", output="softmax", dtype="float16")
ROWS = 20  # not a multiple of any block
LABELS = {(80, "whole"): "whole/16", (80, "layered"): "layered/16", (90, "layered"): "layered/128"}
LABELS |= {(100, "layered"): "layered/128", (80, "deep"): "whole/16", (90, "split"): "split/16"}
# Alike layers, whose loop copies weights ahead; and a sum in parts, for one block of rows.
SPECS = {"deep": make_spec((30, 40, 40, 40, 40, 5), "relu", output="softmax", dtype="float16")}
SPECS |= {"split": make_spec((1100, 20, 5), "silu", output="softmax", dtype="float16")}


class Launcher(compiled.PtxLauncher):
    """Launches what `change` makes of each kernel."""

    def __init__(self, capability: int, change: Callable[[str], str]) -> None:
        super().__init__(capability)
        self._change = change

    def binary(self, plan: compiled.LaunchPlan) -> compiled.Binary:
        good = _good_binary(self._capability, plan)
        return compiled.Binary(self._change(good.ptx), good.name, good.shared, good.warps)


_COMPILED: dict[tuple[int, str], compiled.Binary] = {}


def _good_binary(capability: int, plan: compiled.LaunchPlan) -> compiled.Binary:
    key = (capability, repr(plan))
    if key not in _COMPILED:
        _COMPILED[key] = compiled.compile_to_ptx(plan, capability)
    return _COMPILED[key]


def answer(
    monkeypatch: pytest.MonkeyPatch, capability: int, strategy: str, change: Callable[[str], str]
) -> torch.Tensor:
    architecture = architecture_of(capability)
    assert architecture is not None
    mlp, x = given(strategy)
    label = LABELS[capability, strategy]
    tile = next(tile for tile in candidate_tiles(mlp.spec, architecture) if tile.label == label)
    launcher = Launcher(capability, change)
    monkeypatch.setattr(Binary, "launch", lambda binary, rows, *rest: launcher(binary._plan, rows, *rest))
    program = TritonProgram(mlp, tile, torch.device("cpu"))
    rows = len(x)
    y = torch.full((rows, mlp.spec.out_features), torch.nan)
    workspace = program.workspace(rows, lambda shape, dtype: torch.full(shape, torch.nan, dtype=dtype))
    program.enqueue(x.clone(), y, rows, workspace)
    return y


@cache
def given(strategy: str) -> tuple[Mlp, torch.Tensor]:
    spec = SPECS.get(strategy, SPEC)
    rows = 5 if strategy == "split" else ROWS
    return make_mlp(spec), torch.randn(rows, spec.in_features, generator=torch.Generator().manual_seed(0))


@cache
def expected(strategy: str) -> torch.Tensor:
    mlp, x = given(strategy)
    return torch.from_numpy(evaluate(mlp, x.half().double().numpy())).float()


def without(pattern: str, count: int = 0) -> Callable[[str], str]:
    return replaced(pattern, "", count)


def replaced(pattern: str, by: str, count: int = 0) -> Callable[[str], str]:
    return lambda ptx: re.sub(pattern, by, ptx, count=count, flags=re.MULTILINE)


# What a copy delivers reads as NaN until it is waited for.
NANS, OTHER_NUMBERS = "NaNs", "other numbers"


def noticed(
    monkeypatch: pytest.MonkeyPatch, capability: int, strategy: str, change: Callable[[str], str]
) -> PtxError | str | None:
    """The error, or what is in the result instead; None if all is well."""
    changes: list[bool] = []

    def change_and_tell(ptx: str) -> str:
        changes.append(change(ptx) != ptx)
        return change(ptx)

    try:
        y = answer(monkeypatch, capability, strategy, change_and_tell)
    except PtxError as error:
        return error
    assert any(changes), "nothing was changed"
    if torch.allclose(y, expected(strategy), atol=2e-3, rtol=0):
        return None
    return NANS if y.isnan().any() else OTHER_NUMBERS


@pytest.mark.parametrize(("capability", "strategy"), list(LABELS))
def test_unchanged_kernels_agree(monkeypatch: pytest.MonkeyPatch, capability: int, strategy: str) -> None:
    y = answer(monkeypatch, capability, strategy, lambda ptx: ptx)
    assert torch.allclose(y, expected(strategy), atol=2e-3, rtol=0)


BARRIER = r"^\s*bar\.sync\s+0;"
STORE_MASK = r"@%p\d+ (st\.global)"


@pytest.mark.parametrize(
    ("capability", "strategy", "change", "kind"),
    [
        pytest.param(80, "layered", without(r"cp\.async\.wait_group\s+\d+;"), NANS, id="no waits for copies"),
        pytest.param(
            80,
            "layered",
            replaced(r"(cp\.async\.wait_group\s+)\d+;", r"\g<1>5;"),
            NANS,
            id="waits for too few copies",
        ),
        pytest.param(80, "deep", without(r"cp\.async\.wait_group\s+\d+;"), NANS, id="no waits for weights"),
        pytest.param(80, "deep", without(BARRIER), Race, id="no barriers, alike layers"),
        pytest.param(90, "layered", without(r"griddepcontrol\.wait;"), Race, id="no wait for a launch"),
        pytest.param(90, "split", without(r"griddepcontrol\.wait;"), Race, id="no wait for sums"),
        pytest.param(80, "whole", without(BARRIER), Race, id="no barriers"),
        pytest.param(80, "layered", without(BARRIER), Race, id="no barriers, layered"),
        pytest.param(
            80,
            "layered",
            replaced(r"(m8n8\.x4)(\.shared)", r"\1.trans\2"),
            OTHER_NUMBERS,
            id="transposed ldmatrix",
        ),
        pytest.param(
            80,
            "layered",
            replaced(r"(mad\.wide\.s32\s+%rd\d+, %r\d+, )(\d{3,}),", r"\g<1>64,"),
            OTHER_NUMBERS,
            id="wrong stride",
        ),
        pytest.param(80, "layered", replaced(STORE_MASK, r"\1"), BadAccess, id="no mask for stores"),
        pytest.param(80, "whole", replaced(STORE_MASK, r"\1"), BadAccess, id="no mask for stores, whole"),
        pytest.param(
            80,
            "layered",
            replaced(r"(selp\.b32\s+%r\d+, \w+, )0, %p\d+;", r"\g<1>4, %p1;"),
            BadAccess,
            id="no mask for copies",
        ),
        pytest.param(
            80,
            "whole",
            replaced(r"(shfl\.sync\.bfly\.b32\s+%r\d+, %r\d+, )\d+", r"\g<1>0"),
            OTHER_NUMBERS,
            id="shuffles of nothing",
        ),
        pytest.param(
            90, "layered", without(r"wgmma\.wait_group\.sync\.aligned\s+0;"), NANS, id="no wait for wgmma"
        ),
        pytest.param(90, "layered", without(r"fence\.proxy\.async\S*;"), Race, id="no fence before wgmma"),
        pytest.param(90, "layered", without(BARRIER), Race, id="no barriers, wgmma"),
        pytest.param(
            100, "layered", without(r"@%p\d+ tcgen05\.commit\S* \[%r\d+\];"), Stuck, id="no commit of tcgen05"
        ),
        pytest.param(
            100, "layered", without(r"tcgen05\.wait::ld\S*;"), NANS, id="no wait for loads of tensor memory"
        ),
        pytest.param(
            100, "layered", without(r"tcgen05\.wait::st\S*;"), Race, id="no wait for stores to tensor memory"
        ),
        pytest.param(
            100,
            "layered",
            without(r"mbarrier\.try_wait[^;]*;\s*@!complete bra\.uni waitLoop;"),
            NANS,
            id="no wait for tcgen05",
        ),
        pytest.param(100, "layered", without(BARRIER), Race, id="no barriers, tcgen05"),
    ],
)
def test_defect_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    capability: int,
    strategy: str,
    change: Callable[[str], str],
    kind: type[PtxError] | str,
) -> None:
    """For what it is: an instruction that the interpreter does not know is an error too."""
    found = noticed(monkeypatch, capability, strategy, change)
    assert kind in (found, type(found)), found


def test_every_single_barrier_between_a_write_and_a_read_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time. Five of the 23 that Triton makes follow another one, or copies into other buffers, with nothing
    between that they would order."""
    texts: list[str] = []
    answer(monkeypatch, 80, "whole", lambda ptx: texts.append(ptx) or ptx)  # type: ignore[func-returns-value]
    found = []
    for barrier in re.finditer(BARRIER, texts[0], re.MULTILINE):
        shorter = texts[0][: barrier.start()] + texts[0][barrier.end() :]
        found.append(noticed(monkeypatch, 80, "whole", lambda ptx, shorter=shorter: shorter))  # type: ignore[misc]
    assert sum(isinstance(each, Race) for each in found) >= len(found) - 5, found
