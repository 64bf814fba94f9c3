# SPDX-License-Identifier: Apache-2.0
"""Quantised models of others: ONNX files of onnxruntime, hand-made graphs, and torch's dynamically quantised linears
become int8 models with the same weights."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from fused_mlp import kernels, models
from fused_mlp.models import ModelLoadError
from fused_mlp.models.importers.importer import import_model
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.weights.quantization import Int8Matrix, to_int8
from tests.models.importers.test_from_onnx import Graph, read

KEPT = np.load(Path(__file__).parent / "data" / "quantized.npz")
NAMES = [name.removesuffix(": file") for name in KEPT if name.endswith(": file")]


def file_of(name: str, tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(KEPT[f"{name}: file"].tobytes())
    return path


# Operators of onnxruntime, which onnx's own reference does not know.
_unchecked = pytest.mark.filterwarnings("ignore:not checked against the graph, which onnx cannot run")


@pytest.mark.parametrize("name", NAMES)
@_unchecked
def test_what_onnxruntime_quantises_becomes_int8(name: str, tmp_path: Path) -> None:
    """Dynamic and static, with QuantizeLinear and with operators on whole numbers, as saved and as optimised."""
    mlp = models.from_onnx(file_of(name, tmp_path))
    assert (mlp.precision, len(mlp.reduced)) == ("int8", 4)
    assert mlp.error is not None
    x, theirs = KEPT["x"], KEPT[f"{name}: answers"]
    # They round rows in one way and we in another: both are about as far from floats.
    floats = evaluate(models.from_onnx(tmp_path / "m.onnx", precision="float32"), x.astype(np.float64))
    away = np.abs(theirs - floats).max()
    assert 0 < away < 0.06
    assert np.abs(kernels.compile(mlp, device="cpu")(x) - theirs).max() < 2 * away + 0.01
    assert np.abs(floats - KEPT["float"]).max() < 0.06


@pytest.mark.parametrize("name", ["dynamic int8", "static int8 by output", "optimised dynamic int8"])
@_unchecked
def test_symmetric_weights_are_the_whole_numbers_of_the_file(name: str, tmp_path: Path) -> None:
    path = file_of(name, tmp_path)
    arrays = {each.name: numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
    stored = [each for key, each in arrays.items() if each.dtype == np.int8 and each.ndim == 2]
    matrices = list(models.from_onnx(path).reduced.values())
    assert len(stored) == len(matrices) == 4
    for matrix in matrices:
        assert isinstance(matrix, Int8Matrix)
        # With one scale for all outputs, most of them do not reach 127.
        same = [
            q for q in stored for each in (q, q.T) if np.array_equal(np.maximum(each, -127), matrix.values)
        ]
        assert same


def quantised_product(weight: np.ndarray, scale: np.ndarray, zero: np.ndarray, opset: int = 20) -> Graph:
    """As quantize_dynamic writes it; weight: (in, out)."""
    graph = Graph(width=len(weight), opset=opset)
    rows, of_rows, zero_of_rows = graph.node("DynamicQuantizeLinear", "x", outputs=3)
    weight_name, zero_name = graph.constant(weight, weight.dtype), graph.constant(zero, zero.dtype)
    sums = graph.node("Cast", graph.node("MatMulInteger", rows, weight_name, zero_of_rows, zero_name), to=1)
    graph.node("Mul", sums, graph.node("Mul", of_rows, scale))
    return graph


def test_asymmetric_weights_mean_what_they_mean_and_the_rounding_is_measured(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    weight = generator.integers(0, 256, (40, 3)).astype(np.uint8)
    weight[:, 0] = generator.integers(60, 180, 40)  # within 127 of its zero point
    scale, zero = np.array([0.02, 0.1, 0.004], np.float32), np.array([90, 128, 3], np.uint8)
    meant = (weight.astype(int) - zero) * scale.astype(np.float64)
    path = quantised_product(weight, scale, zero).save(tmp_path / "m.onnx")
    exact = models.from_onnx(path, precision="float32")
    assert exact.precision == "float32"
    (tensor,) = exact.tensors().values()
    np.testing.assert_array_equal(tensor, meant.T.astype(np.float32))
    mlp = models.from_onnx(path)
    (matrix,) = mlp.reduced.values()
    assert isinstance(matrix, Int8Matrix)
    np.testing.assert_array_equal(matrix.values[0], weight[:, 0].astype(int) - 90)
    # The others are rounded to 255 steps of their own.
    steps = np.abs(meant).max(axis=0) / 127
    assert (np.abs(matrix.widened().T - meant) <= 0.5001 * steps).all()
    assert mlp.error is not None
    assert 0 < mlp.error.largest < 0.05


def test_a_function_that_a_range_stands_for_is_read(tmp_path: Path) -> None:
    """Quantisers drop a ReLU6 whose result is rounded to uint8 from 0 to 6."""
    for opset in (10, 20):
        graph = Graph(opset=opset)
        hidden = graph.linear("x", 4)
        scale, zero = graph.constant(6 / 255), graph.constant(0, np.uint8)
        graph.node("DequantizeLinear", graph.node("QuantizeLinear", hidden, scale, zero), scale, zero)
        mlp = read(graph, tmp_path, precision="float32")
        assert [step.function for step in mlp.spec.steps if step.op == "elementwise"] == ["relu6"]
        assert not mlp.quantized  # its weights are floats


def test_weights_that_are_rounded_where_they_are_used_are_int8(tmp_path: Path) -> None:
    """As after training with simulated quantisation: QuantizeLinear and DequantizeLinear of a float weight."""
    weight = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    scales = np.abs(weight).max(axis=1) / np.float32(100)
    graph = Graph()
    grid = graph.constant(0.1), graph.constant(0, np.int8)
    rows = graph.node("DequantizeLinear", graph.node("QuantizeLinear", "x", *grid), *grid)
    own = graph.constant(scales), graph.constant(np.zeros(8), np.int8)
    whole = graph.node("QuantizeLinear", graph.constant(weight), *own, axis=0)
    graph.node("Gemm", rows, graph.node("DequantizeLinear", whole, *own, axis=0), transB=1)
    (matrix,) = read(graph, tmp_path).reduced.values()
    assert isinstance(matrix, Int8Matrix)
    np.testing.assert_array_equal(
        matrix.values * matrix.scales[:, None], np.rint(weight / scales[:, None]) * scales[:, None]
    )


def _rows_by_feature(graph: Graph) -> None:
    scale, zero = graph.constant([0.1, 0.2, 0.3]), graph.constant(np.zeros(3), np.int8)
    graph.node(
        "DequantizeLinear", graph.node("QuantizeLinear", "x", scale, zero, axis=1), scale, zero, axis=1
    )


def _another_scale(graph: Graph) -> None:
    zero = graph.constant(0, np.int8)
    graph.node(
        "DequantizeLinear",
        graph.node("QuantizeLinear", "x", graph.constant(0.1), zero),
        graph.constant(0.2),
        zero,
    )


def _both_computed(graph: Graph) -> None:
    rows, _, zero = graph.node("DynamicQuantizeLinear", "x", outputs=3)
    graph.node("Cast", graph.node("MatMulInteger", rows, rows, zero, zero), to=1)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (_rows_by_feature, "node 0: QuantizeLinear is not part of an MLP: it is quantised in a way that is not read"),
        (_another_scale, "node 1: DequantizeLinear is not part of an MLP: it is quantised"),
        (_both_computed, "node 1: MatMulInteger is not part of an MLP: it is quantised"),
        (lambda g: g.node("QuantizeLinear", "x", [0.1], g.constant(0, np.int8)), "is quantised: expected floats"),
    ],
)  # fmt: skip
def test_what_is_quantised_otherwise_is_refused_by_name(make, text: str, tmp_path: Path) -> None:
    graph = Graph()
    make(graph)
    with pytest.raises(ModelLoadError, match=text) as caught:
        read(graph, tmp_path)
    assert "\n" not in str(caught.value)


def test_an_import_measures_a_quantised_file_on_the_rows_given(tmp_path: Path) -> None:
    path = file_of("dynamic int8", tmp_path)
    made = import_model(path, tmp_path / "repo", "m", calibration=KEPT["x"]).mlp
    assert made.error is not None
    assert (made.error.rows, made.error.calibrated) == (40, True)
    assert models.load(tmp_path / "repo" / "m" / "1").precision == "int8"
    assert import_model(path, tmp_path / "repo", "m", precision="float32").mlp.precision == "float32"
    half = import_model(path, tmp_path / "repo", "m", dtype="float16").mlp
    assert (half.spec.dtype, dict(half.reduced)) == ("float16", {})
    with pytest.raises(ModelLoadError, match=r"int8: expected an error of at most 0.1%.*--precision float32"):
        import_model(path, tmp_path / "repo", "m", max_error=1e-3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("engine", [e for e in torch.backends.quantized.supported_engines if e != "none"])
@pytest.mark.parametrize("by_output", [False, True])
def test_dynamically_quantised_linears_of_torch_become_int8(
    engine: str, by_output: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.quantized, "engine", engine)
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.BatchNorm1d(30), nn.Linear(30, 4)
    ).eval()
    config = (
        torch.ao.quantization.per_channel_dynamic_qconfig
        if by_output
        else torch.ao.quantization.default_dynamic_qconfig
    )
    quantised = torch.ao.quantization.quantize_dynamic(plain, {"0": config, "2": config})
    mlp = models.from_torch(quantised)
    assert set(mlp.reduced) == {"0.weight", "2.weight"}  # the last one was not
    assert mlp.error is not None
    assert mlp.error.kept == ("4",)
    theirs = quantised[0].weight()
    first = mlp.reduced["0.weight"]
    assert isinstance(first, Int8Matrix)
    np.testing.assert_array_equal(first.values, theirs.int_repr().numpy().clip(min=-127))
    x = torch.randn(50, 20)
    np.testing.assert_allclose(
        kernels.compile(mlp, device="cpu")(x).numpy(), quantised(x).detach().numpy(), atol=0.05
    )
    wide = models.from_torch(quantised, precision="float32").tensors()["0.weight"]
    np.testing.assert_array_equal(wide, theirs.dequantize().numpy())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_linears_of_torch_in_dynamic_float16_are_floats() -> None:
    halves = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(20, 4)), dtype=torch.float16)
    mlp = models.from_torch(halves)
    assert (mlp.precision, mlp.error) == ("float32", None)


def test_weights_on_a_grid_keep_it() -> None:
    generator = np.random.default_rng(0)
    whole = generator.integers(-100, 101, (50, 70)).astype(np.int8)
    scales = generator.uniform(1e-3, 1, 50).astype(np.float32)
    matrix = to_int8(whole * scales[:, None])
    np.testing.assert_array_equal(matrix.values, whole)
    np.testing.assert_array_equal(matrix.scales, scales)
    # What is on none has its largest weight at 127; so has what needs 128 too often.
    whole[:, ::2] = np.where(whole[:, ::2] < 0, -128, 127)
    for weights in (generator.normal(size=(50, 70)).astype(np.float32), whole * scales[:, None]):
        assert (np.abs(to_int8(weights).values).max(axis=1) == 127).all()
        assert (
            np.abs(to_int8(weights).widened() - weights)
            <= 0.501 * np.abs(weights).max(axis=1, keepdims=True) / 127
        ).all()


class Pt2e(nn.Module):
    """What prepare_pt2e and convert_pt2e leave of a linear: quantised and dequantised rows around it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        span = (0.1, 0, -128, 127, torch.int8)
        whole = torch.ops.quantized_decomposed.quantize_per_tensor(x, *span)
        return self.linear(torch.ops.quantized_decomposed.dequantize_per_tensor(whole, *span))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_graphs_of_pt2e_are_refused_in_one_line(tmp_path: Path) -> None:
    importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers the operators
    program = torch.export.export(Pt2e().eval(), (torch.zeros(2, 6),))
    line = (
        r"quantised by pt2e \(quantized_decomposed.quantize_per_tensor.default\), which is not read: import"
    )
    with pytest.raises(ModelLoadError, match=line):
        models.from_torch(program.module())
    torch.export.save(program, tmp_path / "m.pt2")
    with pytest.raises(ModelLoadError, match=line):
        import_model(tmp_path / "m.pt2", tmp_path / "repo", "m")
