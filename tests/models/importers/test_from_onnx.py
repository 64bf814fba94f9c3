# SPDX-License-Identifier: Apache-2.0
"""ONNX files: what exporters really write, hand-made graphs for what they may write, and refusals by name."""

import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn

from fused_mlp import models
from fused_mlp.models import ModelLoadError
from fused_mlp.models.importers.onnx import functions
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.weights.precision import to_precision

DATA = Path(__file__).parent / "data"
SQRT2 = float(np.sqrt(2))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Graph:
    """Builds a graph line by line; every name that is not made by a node is an initializer."""

    def __init__(self, width=3, opset=20, shape=("rows",)):
        self.nodes, self.initializers, self.opset = [], [], opset
        self.input = helper.make_tensor_value_info("x", TensorProto.FLOAT, [*shape, width])
        self.last = "x"

    def constant(self, value, dtype=np.float32):
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, op, *inputs, outputs=1, **attributes):
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        made = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, names, made, **attributes))
        self.last = made[0]
        return made[0] if outputs == 1 else made

    def linear(self, source, out, width=3, bias=True):
        weight = np.random.default_rng(len(self.nodes)).normal(size=(out, width))
        inputs = [source, weight, np.arange(out) / 4 - 0.5] if bias else [source, weight]
        return self.node("Gemm", *inputs, transB=1)

    def save(self, path, output=None, heads=None, **options):
        """`heads`: several outputs, and the type of each."""
        heads = heads or {output or self.last: TensorProto.FLOAT}
        results = [helper.make_tensor_value_info(name, kind, None) for name, kind in heads.items()]
        graph = helper.make_graph(self.nodes, "g", [self.input], results, self.initializers)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("ai.onnx.ml", 3)]
        onnx.save(helper.make_model(graph, opset_imports=opsets), path, **options)
        return path


def read(graph, tmp_path, **options):
    return models.from_onnx(graph.save(tmp_path / "m.onnx"), **options)


def outputs(mlp, x):
    with torch.inference_mode():
        return mlp.to_torch()(x)


# -- files of real exporters


def test_the_file_of_the_current_torch_exporter_with_every_activation():
    sys.path.insert(0, str(DATA))
    try:
        from export_with_dynamo import build
    finally:
        sys.path.remove(str(DATA))
    mlp = models.load(DATA / "dynamo.onnx")
    used = {layer.activation for layer in mlp.spec.layers} | {mlp.spec.output_activation}
    assert len(used) == 14  # all but softmax
    x = torch.randn(9, 2, 3)
    torch.testing.assert_close(outputs(mlp, x.flatten(1)), build()(x).detach())


@pytest.mark.parametrize("opset", [11, 17])
def test_the_files_of_the_older_torch_exporter(opset, tmp_path):
    parts = [
        nn.GELU(),
        nn.GELU("tanh"),
        nn.SiLU(),
        nn.Mish(),
        nn.Hardswish(),
        nn.ReLU6(),
        nn.Softplus(),
        nn.PReLU(),
    ]
    layers = [part for activation in parts for part in (nn.Linear(4, 4), activation)]
    module = nn.Sequential(nn.Flatten(), *layers, nn.BatchNorm1d(4), nn.Linear(4, 3), nn.Softmax(1)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this exporter is deprecated
        torch.onnx.export(
            module, (torch.randn(2, 2, 2),), tmp_path / "m.onnx", dynamo=False, opset_version=opset
        )
    mlp = models.from_onnx(tmp_path / "m.onnx")
    assert [layer.activation for layer in mlp.spec.layers] == [
        "gelu",
        "gelu_tanh",
        "silu",
        "mish",
        "hardswish",
        "relu6",
        "softplus",
        "leaky_relu",
        "identity",
    ]
    x = torch.randn(9, 2, 2)
    torch.testing.assert_close(outputs(mlp, x.flatten(1)), module(x).detach())


# -- spellings


def spell_gelu_by_division(g, x):
    return g.node("Mul", g.node("Mul", x, g.node("Add", g.node("Erf", g.node("Div", x, SQRT2)), 1.0)), 0.5)


def spell_gelu_by_product(g, x):
    half = g.node("Mul", 0.5, x)
    return g.node("Mul", half, g.node("Add", 1.0, g.node("Erf", g.node("Mul", x, 1 / SQRT2))))


def spell_gelu_tanh(g, x):
    cubed = g.node("Mul", g.node("Mul", g.node("Mul", x, x), x), 0.044715)
    inner = g.node("Mul", g.node("Add", x, cubed), float(np.sqrt(2 / np.pi)))
    return g.node("Mul", g.node("Mul", x, 0.5), g.node("Add", g.node("Tanh", inner), 1.0))


SPELLINGS = {
    "gelu by division": (spell_gelu_by_division, "gelu"),
    "gelu by product": (spell_gelu_by_product, "gelu"),
    "gelu operator": (lambda g, x: g.node("Gelu", x), "gelu"),
    "gelu tanh": (spell_gelu_tanh, "gelu_tanh"),
    "gelu tanh operator": (lambda g, x: g.node("Gelu", x, approximate="tanh"), "gelu_tanh"),
    "silu": (lambda g, x: g.node("Mul", g.node("Sigmoid", x), x), "silu"),
    "silu by division": (
        lambda g, x: g.node("Div", x, g.node("Add", 1.0, g.node("Exp", g.node("Neg", x)))),
        "silu",
    ),
    "hardswish operator": (lambda g, x: g.node("HardSwish", x), "hardswish"),
    "hardswish by hard sigmoid": (
        lambda g, x: g.node("Mul", x, g.node("HardSigmoid", x, alpha=1 / 6, beta=0.5)),
        "hardswish",
    ),
    "hardswish by relu6": (
        lambda g, x: g.node("Div", g.node("Mul", x, g.node("Clip", g.node("Add", x, 3.0), 0.0, 6.0)), 6.0),
        "hardswish",
    ),
    "mish operator": (lambda g, x: g.node("Mish", x), "mish"),
    "mish": (lambda g, x: g.node("Mul", x, g.node("Tanh", g.node("Softplus", x))), "mish"),
    "relu6": (lambda g, x: g.node("Clip", x, 0.0, 6.0), "relu6"),
    "relu6 by min and relu": (lambda g, x: g.node("Min", g.node("Relu", x), 6.0), "relu6"),
    "relu by max": (lambda g, x: g.node("Max", x, 0.0), "relu"),
    "relu by clip without an upper limit": (lambda g, x: g.node("Clip", x, 0.0), "relu"),
    "leaky relu": (lambda g, x: g.node("LeakyRelu", x, alpha=0.25), "leaky_relu"),
    "leaky relu by prelu": (lambda g, x: g.node("PRelu", x, [0.25]), "leaky_relu"),
    "elu": (lambda g, x: g.node("Elu", x), "elu"),
    "softplus": (lambda g, x: g.node("Softplus", x), "softplus"),
    "softplus by log": (lambda g, x: g.node("Log", g.node("Add", g.node("Exp", x), 1.0)), "softplus"),
    "sigmoid by tanh": (
        lambda g, x: g.node("Add", g.node("Mul", g.node("Tanh", g.node("Mul", x, 0.5)), 0.5), 0.5),
        "sigmoid",
    ),
    "sigmoid by division": (
        lambda g, x: g.node("Div", 1.0, g.node("Add", 1.0, g.node("Exp", g.node("Neg", x)))),
        "sigmoid",
    ),
    "tanh by subtraction": (
        lambda g, x: g.node("Sub", 1.0, g.node("Mul", g.node("Sigmoid", g.node("Mul", x, -2.0)), 2.0)),
        "tanh",
    ),
    "tanh": (lambda g, x: g.node("Tanh", x), "tanh"),
    "nothing at all": (lambda g, x: g.node("Add", g.node("Mul", x, 1.0), 0.0), "identity"),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_activations_are_recognised_however_they_are_spelled(name, tmp_path):
    spell, expected = SPELLINGS[name]
    graph = Graph()
    graph.linear(spell(graph, graph.linear("x", 3)), 2)
    mlp = read(graph, tmp_path)
    assert mlp.spec.layers[0].activation == expected
    assert mlp.spec.layers[0].negative_slope == (0.25 if expected == "leaky_relu" else 0.01)


def test_clip_limits_may_be_attributes_as_in_old_opsets(tmp_path):
    graph = Graph(opset=9)
    graph.node("Clip", graph.linear("x", 3), min=0.0, max=6.0)
    assert read(graph, tmp_path).spec.output_activation == "relu6"


# -- structure


def test_gemm_in_all_its_forms(tmp_path):
    rng = np.random.default_rng(0)
    w, b = rng.normal(size=(3, 2)), rng.normal(size=2)
    x = torch.randn(5, 3)
    plain = x.double().numpy() @ w
    for inputs, attributes, expected in (
        ((w,), {}, plain),
        ((w.T, b), {"transB": 1}, plain + b),
        ((w, b[None]), {"alpha": 0.5, "beta": 2.0}, 0.5 * plain + 2 * b),
        ((w, [3.0]), {}, plain + 3),
    ):
        graph = Graph()
        graph.node("Gemm", "x", *inputs, **attributes)
        got = outputs(read(graph, tmp_path), x)
        torch.testing.assert_close(got, torch.from_numpy(expected).float())


def test_matmul_and_add_make_a_linear_layer_with_a_bias(tmp_path):
    weight, bias = np.random.default_rng(0).normal(size=(3, 4)), np.arange(4)
    graph = Graph()
    transposed = graph.node("Transpose", weight.T, perm=[1, 0])
    graph.node("Relu", graph.node("Add", bias, graph.node("MatMul", "x", transposed)))
    mlp = read(graph, tmp_path)
    assert mlp.spec.layers[0].bias
    x = torch.randn(5, 3)
    expected = torch.relu(x @ torch.from_numpy(weight).float() + torch.from_numpy(bias))
    torch.testing.assert_close(outputs(mlp, x), expected)


# How a graph may spell x @ W and h @ W.T, of one initializer W.
_ENCODERS = {
    "MatMul": lambda g, x, w: g.node("MatMul", x, w),
    "Gemm": lambda g, x, w: g.node("Gemm", x, w),
    "Gemm of a Transpose": lambda g, x, w: g.node("Gemm", x, g.node("Transpose", w, perm=[1, 0]), transB=1),
}
_DECODERS = {
    "transB": lambda g, x, w: g.node("Gemm", x, w, transB=1),
    "Transpose": lambda g, x, w: g.node("MatMul", x, g.node("Transpose", w, perm=[1, 0])),
    "Transpose without perm": lambda g, x, w: g.node("MatMul", x, g.node("Transpose", w)),
}


@pytest.mark.parametrize("decode", _DECODERS)
@pytest.mark.parametrize("encode", _ENCODERS)
@pytest.mark.parametrize("hidden", [4, 8])
def test_a_tied_autoencoder_multiplies_by_a_weight_and_by_its_transpose(hidden, encode, decode, tmp_path):
    graph = Graph(width=8)
    weight = np.random.default_rng(0).normal(size=(8, hidden))
    name = graph.constant(weight)
    for last in (False, True):  # twice: both orientations are stored once
        x = graph.last if last else "x"
        h = graph.node("Relu", _ENCODERS[encode](graph, x, name))
        _DECODERS[decode](graph, h, name)
    mlp = read(graph, tmp_path)
    assert mlp.spec.parameters == 2 * weight.size
    x = torch.randn(5, 8)
    w = torch.from_numpy(weight).float()
    expected = x
    for _ in range(2):
        expected = torch.relu(expected @ w) @ w.T
    torch.testing.assert_close(outputs(mlp, x), expected)


def test_the_transpose_of_a_weight_is_not_another_weight_of_that_name(tmp_path):
    graph, generator = Graph(width=4), np.random.default_rng(0)
    first, second = generator.normal(size=(2, 4, 4)).astype(np.float32)
    graph.initializers = [numpy_helper.from_array(first, "W"), numpy_helper.from_array(second, "W.T")]
    for name in ("W", "W.T"):
        graph.node("Gemm", graph.node("Gemm", graph.last, name), name, transB=1)
    x = torch.randn(5, 4)
    a, b = map(torch.from_numpy, (first, second))
    torch.testing.assert_close(outputs(read(graph, tmp_path), x), x @ a @ a.T @ b @ b.T)


@pytest.mark.parametrize("hidden", [4, 8])
def test_a_tied_autoencoder_of_torch_is_served_from_its_onnx_file_and_from_torch(hidden, tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(8, hidden)
            self.bias = nn.Parameter(torch.randn(8))

        def forward(self, x):
            h = torch.relu(self.encoder(x))
            return nn.functional.linear(h, self.encoder.weight.t(), self.bias)

    module = Tied().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this exporter is deprecated
        torch.onnx.export(module, (torch.randn(2, 8),), tmp_path / "m.onnx", dynamo=False)
    x = torch.randn(5, 8)
    for mlp in (models.from_onnx(tmp_path / "m.onnx"), models.from_torch(module)):
        torch.testing.assert_close(outputs(mlp, x), module(x).detach())


@pytest.mark.parametrize("gate_first", [True, False])
def test_a_gate_is_recognised_on_either_side(gate_first, tmp_path):
    graph = Graph()
    gate, up = graph.linear("x", 4, bias=False), graph.linear("x", 4)
    activated = graph.node("Mul", gate, graph.node("Sigmoid", gate))
    graph.linear(graph.node("Mul", *((activated, up) if gate_first else (up, activated))), 2, width=4)
    mlp = read(graph, tmp_path)
    layer, weights = mlp.spec.layers[0], mlp.layers[0]
    assert (layer.gated, layer.activation, layer.bias) == (True, "silu", True)
    assert weights.gate_bias is not None
    assert weights.gate_bias.tolist() == [0, 0, 0, 0]
    assert weights.bias is not None
    assert weights.bias.tolist() == [-0.5, -0.25, 0, 0.25]


def test_input_normalisation_and_batch_norms_are_folded(tmp_path):
    rng = np.random.default_rng(0)
    scale, shift, mean = rng.normal(size=(3, 3))
    variance = rng.uniform(1, 2, size=3)
    graph = Graph()
    normal = graph.node("Div", graph.node("Sub", "x", [1.0, 2.0, 3.0]), 255.0)
    hidden = graph.node("Relu", graph.linear(normal, 3))
    graph.linear(graph.node("BatchNormalization", hidden, scale, shift, mean, variance, epsilon=1e-3), 2)
    mlp = read(graph, tmp_path)
    first, second = (numpy_helper.to_array(graph.initializers[i]) for i in (2, 8))
    x = np.random.default_rng(1).normal(size=(5, 3)) * 100
    h = np.maximum((x - [1, 2, 3]) / 255 @ first.T + [-0.5, -0.25, 0], 0)
    expected = ((h - mean) / np.sqrt(variance + 1e-3) * scale + shift) @ second.T + [-0.5, -0.25]
    got = outputs(mlp, torch.from_numpy(x).float()).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)  # float32 against float64


@pytest.mark.parametrize("dynamic", [True, False])
def test_images_are_flattened_at_the_front(dynamic, tmp_path):
    graph = Graph(width=3, shape=("rows", 2))
    if dynamic:  # as exporters write x.view(x.shape[0], -1)
        rows = graph.node("Gather", graph.node("Shape", "x"), graph.constant([0], np.int64))
        flat = graph.node("Reshape", "x", graph.node("Concat", rows, graph.constant([-1], np.int64), axis=0))
    else:
        flat = graph.node("Reshape", "x", graph.constant([-1, 6], np.int64))
    graph.linear(graph.node("Dropout", graph.node("Identity", flat)), 2, width=6)
    assert read(graph, tmp_path).spec.in_features == 6


def test_external_data_is_read_from_beside_the_file(tmp_path):
    graph = Graph(width=200)
    graph.linear("x", 40, width=200)
    options = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    path = graph.save(tmp_path / "m.onnx", **options)
    assert (tmp_path / "weights.bin").exists()
    assert models.from_onnx(path).spec.widths == (200, 40)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelLoadError, match=r"external data 'weights.bin' of .*: No such file"):
        models.from_onnx(path)


def test_half_precision_weights_stay_as_they_are(tmp_path):
    graph = Graph()
    weight = graph.constant(np.ones((3, 2)), np.float16)
    hidden = graph.node("MatMul", graph.node("Cast", "x", to=TensorProto.FLOAT16), weight)
    constants = [graph.constant(value, np.float16) for value in (SQRT2, 1, 0.5)]
    inner = graph.node("Add", graph.node("Erf", graph.node("Div", hidden, constants[0])), constants[1])
    graph.node("Mul", graph.node("Mul", hidden, inner), constants[2])
    mlp = read(graph, tmp_path)
    x = np.linspace(-3, 3, 12).reshape(4, 3)
    gelu = torch.nn.functional.gelu(torch.from_numpy(x.sum(1, keepdims=True).repeat(2, 1))).numpy()
    assert mlp.spec.dtype == "float16"
    np.testing.assert_allclose(evaluate(mlp, x), gelu, atol=1e-4)  # sqrt(2) is 1.4141 in float16


def test_bfloat16_bits_are_carried_over(tmp_path):
    graph = Graph()
    tensor = helper.make_tensor("w", TensorProto.BFLOAT16, [3, 1], [1.0, -2.5, 3.140625])
    graph.initializers.append(tensor)
    graph.node("MatMul", "x", "w")
    mlp = read(graph, tmp_path)
    assert mlp.spec.dtype == "bfloat16"
    assert mlp.layers[0].weight.tolist() == [[1.0, -2.5, 3.140625]]


def test_int8_weights_keep_their_values_and_scales(tmp_path):
    """Of weights alone: dequantised where they are read; int8 again gives the same bits."""
    values = np.random.default_rng(0).integers(-127, 128, (2, 3)).astype(np.int8)
    scales = np.array([0.25, 3e-3], np.float32)
    graph = Graph()
    weight = graph.node("DequantizeLinear", graph.constant(values, np.int8), scales, axis=0)
    graph.node("Gemm", "x", weight, transB=1)
    mlp = read(graph, tmp_path)
    assert mlp.precision == "float32"
    (weight,) = mlp.tensors().values()
    np.testing.assert_array_equal(weight, values * scales[:, None])
    (matrix,) = to_precision(mlp, "int8").reduced.values()
    np.testing.assert_array_equal(matrix.values, values)
    np.testing.assert_array_equal(matrix.scales, scales)


def test_double_weights_are_rounded_only_when_asked(tmp_path):
    graph = Graph()
    graph.node("MatMul", "x", graph.constant(np.ones((3, 2)), np.float64))
    with pytest.raises(ModelLoadError, match="float64, which is not served"):
        read(graph, tmp_path)
    assert read(graph, tmp_path, dtype="float32").spec.dtype == "float32"


# -- programs


def residual(g):
    hidden = g.node("Relu", g.linear("x", 3))
    return g.node("Add", hidden, g.linear(hidden, 3))


def layer_norm(g):
    return g.linear(
        g.node("LayerNormalization", g.linear("x", 3), [1.0, 2.0, 3.0], [0.0, 1.0, 2.0], epsilon=1e-3), 2
    )


def rms_norm_by_hand(g):
    h = g.linear("x", 3)
    mean = g.node("ReduceMean", g.node("Pow", h, 2.0), g.constant([-1], np.int64))
    return g.node(
        "Mul",
        g.node("Mul", h, g.node("Reciprocal", g.node("Sqrt", g.node("Add", mean, 1e-6)))),
        [1.0, 2.0, 3.0],
    )


def layer_norm_by_hand(g):  # as exporters for opset 16 and below write it
    h = g.linear("x", 3)
    centred = g.node("Sub", h, g.node("ReduceMean", h, g.constant([-1], np.int64)))
    variance = g.node("ReduceMean", g.node("Mul", centred, centred), g.constant([-1], np.int64))
    return g.node(
        "Add", g.node("Div", centred, g.node("Sqrt", g.node("Add", variance, 1e-5))), [1.0, 2.0, 3.0]
    )


def l2_norm_by_hand(g):
    h = g.linear("x", 3)
    length = g.node("ReduceL2", h, g.constant([1], np.int64), keepdims=1)
    return g.node("Div", h, g.node("Expand", g.node("Clip", length, 1e-12), g.node("Shape", h)))


def quick_gelu(g):
    hidden = g.linear("x", 3)
    return g.node("Mul", hidden, g.node("Sigmoid", g.node("Mul", hidden, 1.702)))


def dueling(g):
    h = g.node("Relu", g.linear("x", 5))
    value, advantage = g.linear(h, 1, width=5), g.linear(h, 4, width=5)
    return g.node(
        "Add", value, g.node("Sub", advantage, g.node("ReduceMean", advantage, g.constant([1], np.int64)))
    )


def split_and_concat(g):
    a, b, c = g.node("Split", g.linear("x", 6), g.constant([1, 2, 3], np.int64), outputs=3, axis=1)
    bounds = [g.constant([n], np.int64) for n in (-1, -4, -1, -1)]  # the last three, backwards
    part = g.node("Slice", g.node("Concat", c, "x", b, axis=-1), *bounds)
    return g.node("Concat", a, part, g.node("Gather", "x", g.constant([2, 0], np.int64), axis=1), axis=1)


def grouped_softmax(g):  # C51
    parts = g.node("Reshape", g.linear("x", 6), g.constant([-1, 2, 3], np.int64))
    weighted = g.node("Mul", g.node("Softmax", parts, axis=2), [-1.0, 0.0, 1.0])
    return g.node("ReduceSum", weighted, g.constant([2], np.int64), keepdims=0)


def keras_dense(g):
    """As tf2onnx writes Dense layers: MatMul and Add, channels moved about before a Flatten, a scaling in front."""
    scaled = g.node("Mul", g.node("Sub", g.node("Cast", "x", to=TensorProto.FLOAT), 0.5), 2.0)
    moved = g.node(
        "Transpose", g.node("Reshape", scaled, g.constant([-1, 1, 1, 3], np.int64)), perm=[0, 2, 3, 1]
    )
    flat = g.node("Reshape", moved, g.constant([0, -1], np.int64))
    rng = np.random.default_rng(0)
    hidden = g.node(
        "Elu", g.node("Add", g.node("MatMul", flat, rng.normal(size=(3, 4))), rng.normal(size=4)), alpha=0.5
    )
    return g.node("Add", g.node("MatMul", hidden, rng.normal(size=(4, 2))), rng.normal(size=2))


def torch_group_norm(g):
    parts = g.node("Reshape", g.linear("x", 6), g.constant([0, 2, -1], np.int64))
    normal = g.node("InstanceNormalization", parts, [1.0, 1.0], [0.0, 0.0])
    flat = g.node("Reshape", normal, g.node("Shape", g.nodes[0].output[0]))
    return g.node("Add", g.node("Mul", flat, np.arange(6)), np.ones(6))


PROGRAMS = {
    "a residual": (residual, "3 relu -> 3 -> +"),
    "a layer norm": (layer_norm, "3 -> ln -> 2"),
    "a layer norm by hand": (layer_norm_by_hand, "3 -> ln"),
    "a norm of squares by hand": (rms_norm_by_hand, "3 -> rms"),
    "a length by hand": (l2_norm_by_hand, "3 -> l2"),
    "quick gelu": (quick_gelu, "3 quick_gelu"),
    "elu of another alpha": (lambda g: g.node("Elu", g.linear("x", 3), alpha=0.5), "elu(x, 0.5)"),
    "a clip of other limits": (lambda g: g.node("Clip", g.linear("x", 3), 0.0, 1e4), "clip(x, 0, 10000)"),
    "a slope per feature": (lambda g: g.node("PRelu", g.linear("x", 3), [0.1, 0.2, 0.3]), "relu"),
    "a gate of another function": (
        lambda g: g.linear(g.node("Mul", g.node("Erf", g.linear("x", 3)), g.linear("x", 3)), 2),
        "gated erf",
    ),
    "a product of branches": (
        lambda g: g.node("Mul", g.linear("x", 3), g.node("Relu", g.linear(g.linear("x", 3), 3))),
        "*",
    ),
    "a softmax inside": (lambda g: g.linear(g.node("Softmax", g.linear("x", 3)), 2), "softmax -> 2"),
    "no linear layer": (lambda g: g.node("Relu", "x"), "3 -> relu"),
    "an einsum": (lambda g: g.node("Einsum", "x", np.eye(4, 3), equation="bi,oi->bo"), "3-4"),
    "a dueling network": (dueling, "+"),
    "splits, slices and concats": (split_and_concat, "concat"),
    "a softmax over each part": (grouped_softmax, "softmax"),
    "dense layers of Keras": (keras_dense, "3-4-2 elu(x, 0.5)"),
    "a group norm of torch": (torch_group_norm, "ln"),
    "the mean of two": (lambda g: g.node("Mean", g.linear("x", 3), "x"), "+"),
    "the largest of three": (lambda g: g.node("Max", g.linear("x", 3), "x", g.linear("x", 3)), "max"),
    "shrinking": (
        lambda g: g.node("Shrink", g.linear("x", 3), lambd=0.25, bias=0.25),
        "clip(x, -0.25, 0.25)",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_of_any_shape_become_programs(name, tmp_path):
    make, words = PROGRAMS[name]
    graph = Graph()
    make(graph)
    mlp = read(graph, tmp_path)
    assert words in mlp.spec.summary()
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    (expected,) = ReferenceEvaluator(str(tmp_path / "m.onnx")).run(None, {"x": x})
    np.testing.assert_allclose(evaluate(mlp, x.astype(np.float64)), expected, rtol=1e-4, atol=1e-5)


def test_several_outputs_become_heads_by_their_names(tmp_path):
    graph = Graph()
    hidden = graph.node("Tanh", graph.linear("x", 5))
    graph.nodes.append(helper.make_node("Softmax", [graph.linear(hidden, 4, width=5)], ["pi"]))
    graph.nodes.append(
        helper.make_node("Squeeze", [graph.linear(hidden, 1, width=5), graph.constant([1], np.int64)], ["v"])
    )
    graph.save(tmp_path / "m.onnx", heads={"pi": TensorProto.FLOAT, "v": TensorProto.FLOAT})
    spec = models.from_onnx(tmp_path / "m.onnx").spec
    assert [(each.name, each.squeeze) for each in spec.outputs] == [("pi", False), ("v", True)]
    assert spec.output_widths == (4, 1)


def test_class_labels_beside_probabilities_are_left_out_and_it_is_said(tmp_path):
    graph = Graph()
    scores = graph.node("Softmax", graph.linear("x", 4))
    graph.nodes.append(helper.make_node("ArgMax", [scores], ["label"], axis=1, keepdims=0))
    graph.nodes.append(helper.make_node("Identity", [scores], ["probabilities"]))
    graph.save(tmp_path / "m.onnx", heads={"label": TensorProto.INT64, "probabilities": TensorProto.FLOAT})
    mlp = models.from_onnx(tmp_path / "m.onnx")
    assert mlp.spec.summary() == "3-4 softmax"
    assert mlp.source == "imported from m.onnx without its output 'label': class labels, not numbers"


def test_a_graph_that_is_read_wrong_is_not_handed_out(tmp_path, monkeypatch):
    monkeypatch.setitem(functions.FUNCTIONS, "Relu", functions.FUNCTIONS["Tanh"])
    graph = Graph()
    graph.node("Relu", graph.linear("x", 3))
    with pytest.raises(ModelLoadError, match="does not compute what the model does"):
        read(graph, tmp_path)


def test_a_fixed_number_of_rows_is_no_limit(tmp_path):
    """Files are often exported with one row, or two, and the sizes written into reshapes."""
    for rows in (1, 2):
        graph = Graph(width=4, shape=(rows, 2))
        flat = graph.node("Reshape", "x", graph.constant([rows, 8], np.int64))
        graph.node("Reshape", graph.linear(flat, 1, width=8), graph.constant([rows], np.int64))
        spec = read(graph, tmp_path).spec
        assert (spec.in_features, spec.outputs[0].squeeze) == (8, True)


def test_steps_have_the_names_of_the_modules_that_they_come_from(tmp_path):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.norm = nn.Linear(4, 6), nn.Linear(6, 4, bias=False), nn.LayerNorm(4)

        def forward(self, x):
            return x + self.fc2(torch.relu(self.fc1(self.norm(x))))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this exporter is deprecated
        torch.onnx.export(
            nn.Sequential(Block(), Block()).eval(), (torch.randn(2, 4),), tmp_path / "m.onnx", dynamo=False
        )
    names = [step.name for step in models.from_onnx(tmp_path / "m.onnx").spec.steps if step.op == "linear"]
    assert names == ["0.fc1", "0/fc2", "1.fc1", "1/fc2"] or names == ["0.fc1", "0.fc2", "1.fc1", "1.fc2"]


# -- refusals


REFUSED = {
    "a convolution": (
        lambda g: g.node("Conv", g.linear("x", 3), np.ones((1, 1, 1))),
        "node 1: Conv is not part of",
    ),
    "attention": (
        lambda g: g.node("MatMul", g.linear("x", 3), g.node("Transpose", g.linear("x", 3))),
        "node 3: MatMul: a product of two computed matrices",
    ),
    "a sum over rows": (
        lambda g: g.node("ReduceSum", g.linear("x", 3)),
        "node 1: ReduceSum: it goes over the rows",
    ),
    "transposed rows": (lambda g: g.node("Gemm", "x", np.ones((3, 2)), transA=1), "transposes the rows"),
    "a bias per row": (
        lambda g: g.node("Gemm", "x", np.ones((3, 2)), np.ones((5, 2))),
        "one value per feature",
    ),
    "a constant per row": (
        lambda g: g.node("Add", g.linear("x", 3), np.arange(15).reshape(5, 3)),
        "node 1: Add: a constant of shape .* of its own for each row",
    ),
    "a softmax over rows": (
        lambda g: g.node("Softmax", g.linear("x", 3), axis=0),
        "node 1: Softmax: it goes over the rows",
    ),
    "rows from parts of rows": (
        lambda g: g.node("Reshape", g.linear("x", 4), g.constant([-1, 2], np.int64)),
        r"has shape \(2 \* rows, 2\)",
    ),
    "features from several rows": (
        lambda g: g.node("Reshape", g.linear("x", 3), g.constant([-1, 7], np.int64)),
        "does not keep the values of each row together",
    ),
    "an output of three axes": (
        lambda g: g.node("Unsqueeze", g.linear("x", 3), g.constant([1], np.int64)),
        r"has shape \(rows, 1, 3\)",
    ),
    "an input that is the output": (lambda g: g.node("Identity", "x"), "the output is the input"),
    "some rows": (
        lambda g: g.node("Slice", g.linear("x", 3), *(g.constant([n], np.int64) for n in (0, 1, 0))),
        "node 1: Slice: it picks rows",
    ),
    "a function with steps": (
        lambda g: g.node("Floor", g.linear("x", 3)),
        "node 1: Floor is not part of an MLP",
    ),
    "random numbers": (
        lambda g: g.node("Add", g.linear("x", 3), g.node("RandomNormal", shape=[3])),
        "node 1: RandomNormal is not part of an MLP",
    ),
    "quantised rows": (
        lambda g: g.node("DynamicQuantizeLinear", g.linear("x", 3), outputs=3)[0],
        "output '.*' is quantised: expected floats, add a DequantizeLinear",
    ),
    "an integer cast": (
        lambda g: g.node("Cast", g.linear("x", 3), to=TensorProto.INT64),
        "node 1: Cast: a cast of computed floats to whole numbers",
    ),
    "the best of all rows": (
        lambda g: g.node("ArgMax", g.linear("x", 3)),
        "node 1: ArgMax: it goes over the rows",
    ),
    "widths that do not fit": (
        lambda g: g.linear(g.linear("x", 4), 2),
        "node 1: Gemm: expected 3 features, got 4",
    ),
    "an input of another width": (
        lambda g: g.linear("x", 2, width=5),
        "node 0: Gemm: expected 5 features, got 3",
    ),
    "an unknown name": (lambda g: g.node("Relu", "nowhere"), "uses 'nowhere', which no node before it makes"),
    "an output without the input": (lambda g: g.node("Relu", [1.0]), "does not depend on the input"),
    "a vector of the wrong length": (
        lambda g: g.node("Mul", g.linear("x", 3), [1.0, 2.0]),
        "node 1: Mul cannot be read: shape mismatch",
    ),
    "constants of terabytes": (
        lambda g: g.node("MatMul", "x", g.node("Add", np.ones((1 << 16, 1)), np.ones((1, 1 << 16)))),
        "node 0: Add: its constants become too large",
    ),
    "a shape of terabytes": (
        lambda g: g.node("MatMul", "x", g.node("ConstantOfShape", g.constant([3, 1 << 40], np.int64))),
        "node 0: ConstantOfShape: its constants become too large",
    ),
    "NaN weights": (lambda g: g.node("MatMul", "x", np.full((3, 2), np.nan)), "6 of 6 values are NaN"),
    "a training batch norm": (
        lambda g: g.node("BatchNormalization", g.linear("x", 3), *np.ones((4, 3)), training_mode=1),
        "eval mode",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_an_mlp_is_refused_by_name(name, tmp_path):
    make, text = REFUSED[name]
    graph = Graph()
    make(graph)
    with pytest.raises(ModelLoadError, match=text) as caught:
        read(graph, tmp_path)
    assert "\n" not in str(caught.value)
    assert "m.onnx" in str(caught.value)


def test_deeply_shared_arithmetic_is_evaluated_once(tmp_path):
    graph = Graph()
    value = graph.linear("x", 3)
    for _ in range(200):  # 2^200 evaluations if each use were computed anew
        value = graph.node("Max", value, value)
    assert read(graph, tmp_path).spec.output_activation == "identity"


def test_damaged_and_missing_files_are_one_line(tmp_path):
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "junk.onnx").write_bytes(b"\xff" * 100)
    for name, text in (
        ("absent.onnx", "no such file"),
        ("empty.onnx", "at least one output"),
        ("junk.onnx", "not a readable"),
    ):
        with pytest.raises(ModelLoadError, match=text) as caught:
            models.from_onnx(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_without_the_onnx_package_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    path = Graph().save(tmp_path / "m.onnx", output="x")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModelLoadError, match=r"pip install 'fused-mlp\[onnx\]'"):
        models.load(path)
