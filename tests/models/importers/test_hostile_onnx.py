# SPDX-License-Identifier: Apache-2.0
"""ONNX files that were made to read other files, to run for ever, or to use up memory: one line each, soon, and with
little more memory than the file."""

import os
import time
import tracemalloc

import numpy as np
import pytest

from fused_mlp import models
from fused_mlp.models import ModelLoadError

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

node, value_info = helper.make_node, helper.make_tensor_value_info
BIG = 1 << 40
INT64 = TensorProto.INT64
_MAX_BYTES = 400 << 20
OPSETS = [helper.make_opsetid(*each) for each in (("", 17), ("own", 1), ("com.microsoft", 1))]
LAYER = node("MatMul", ["x", "W"], ["y"])


@pytest.fixture
def save(tmp_path):
    """Writes a graph of x (rows, 4), W (4, 3) and other constants, by name."""

    def save(*nodes, functions=(), row=(4,), rows="rows", outputs=(), tensors=(), opset=17, **constants):
        constants = {"W": np.ones((4, 3), np.float32)} | constants
        graph = helper.make_graph(
            nodes,
            "graph",
            [value_info("x", TensorProto.FLOAT, [rows, *row])],
            [value_info("y", TensorProto.FLOAT, None), *outputs],
            [
                *(numpy_helper.from_array(np.asarray(each), name) for name, each in constants.items()),
                *tensors,
            ],
        )
        opsets = [helper.make_opsetid("", opset), *OPSETS[1:]]
        model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
        (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
        return tmp_path / "net.onnx"

    return save


def refused(path):
    tracemalloc.start()
    try:
        with pytest.raises(ModelLoadError) as caught:
            models.load(path)
        assert tracemalloc.get_traced_memory()[1] < _MAX_BYTES
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_texts_are_no_constants(save):
    """A text takes a hundred times the memory of the number that it was made of."""
    texts = (node("Cast", ["W"], ["text"], to=TensorProto.STRING), node("Cast", ["text"], ["big"], to=1))
    assert "Cast is not part of an MLP" in refused(save(*texts, *added("big")))
    texts = (node("CastLike", ["W", "word"], ["text"]), node("Cast", ["text"], ["big"], to=1))
    assert "CastLike is not part of an MLP" in refused(
        save(*texts, *added("big"), word=np.array(["a"], object))
    )


def added(name):
    """Nodes that need a constant of any shape."""
    return (
        node("ReduceSum", [name], ["sum"], keepdims=0),
        node("MatMul", ["x", "W"], ["product"]),
        node("Add", ["product", "sum"], ["y"]),
    )


COLUMN_AND_ROW = (node("Unsqueeze", ["v", "one"], ["column"]), node("Unsqueeze", ["v", "zero"], ["row"]))
VECTOR = {"v": np.zeros(100_000, np.float32), "one": np.array([1]), "zero": np.array([0])}
SIZE = {"n": np.array([BIG])}


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("ConstantOfShape", ["n"], ["big"])], SIZE),
        ([node("Expand", ["W", "n"], ["big"])], {"n": np.array([BIG, 4, 3])}),
        ([node("Tile", ["W", "n"], ["big"])], {"n": np.array([1 << 20, 1 << 20])}),
        ([node("Split", ["W"], ["big"], num_outputs=1 << 33)], {}),
        ([node("Split", ["W", "n"], ["big"])], {"n": np.zeros(1_000_000, np.int64)}),
        ([*COLUMN_AND_ROW, node("Mul", ["column", "row"], ["big"])], VECTOR),
        ([*COLUMN_AND_ROW, node("MatMul", ["column", "row"], ["big"])], VECTOR),
        ([*COLUMN_AND_ROW, node("Clip", ["column", "row"], ["big"])], VECTOR),
        ([*COLUMN_AND_ROW, node("Gather", ["column", "row"], ["big"], axis=1)], VECTOR | {"v": np.zeros(20_000, int)}),
        # each of them small enough, and too many together
        ([node("ConstantOfShape", ["n"], [f"b{i}"]) for i in range(9)] + [node("Relu", ["b8"], ["big"])],
         {"n": np.array([1 << 23])}),
    ],
    ids=["fill", "expand", "tile", "split", "sizes", "broadcast", "product", "clip", "gather", "total"],
)  # fmt: skip
def test_constants_are_bounded_before_they_are_computed(save, nodes, constants):
    assert "too large for an MLP" in refused(save(*nodes, *added("big"), **constants))


@pytest.mark.parametrize("limits", [(0, 0.1, 1e-12), (0, np.inf, 1), (0, np.nan, 1), (0, 1, 0), (0, 1e30, 1)])
def test_ranges_are_bounded_before_they_are_counted(save, limits):
    constants = {name: np.float64(each) for name, each in zip(("start", "end", "step"), limits, strict=True)}
    assert "Range" in refused(save(node("Range", list(constants), ["big"]), *added("big"), **constants))


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("Concat", [f"x{i}" if i else "x"] * 2, [f"x{i + 1}"], axis=1) for i in range(40)]
         + [node("ReduceMean", ["x40"], ["y"], axes=[1])], {}),
        ([node("Unsqueeze", ["x", "one"], ["u"]), node("Expand", ["u", "n"], ["e"]),
          node("ReduceMean", ["e"], ["y"], axes=[1])],
         {"one": np.array([1]), "n": np.array([1, BIG, 4])}),
        ([node("Gather", ["x", "i"], ["g"], axis=1), node("Unsqueeze", ["g", "one"], ["u"]),
          node("Unsqueeze", ["g", "two"], ["v"]), node("Add", ["v", "u"], ["e"]),
          node("ReduceMean", ["e"], ["y"], axes=[1])],
         {"i": np.zeros(1 << 18, np.int64), "one": np.array([1]), "two": np.array([2])}),
    ],
    ids=["concat", "expand", "broadcast"],
)  # fmt: skip
def test_rows_are_bounded(save, nodes, constants):
    assert "a row of " in refused(save(*nodes, **constants))


def test_inputs_are_bounded(save):
    mean = node("ReduceMean", ["x"], ["y"], axes=[1])
    assert f"a row of {BIG} values" in refused(save(mean, row=(BIG,)))
    assert f"a row of {BIG} values" in refused(save(mean, row=(1 << 20, 1 << 20)))
    assert f"it takes {BIG} rows at a time" in refused(save(LAYER, rows=BIG))


def expanded(count):
    """Each node makes 4 million values of every row out of 4."""
    nodes = [node("Unsqueeze", ["x", "one"], ["u"])]
    for i in range(count):
        nodes += [
            node("Expand", ["u", "n"], [f"e{i}"]),
            node("ReduceMean", [f"e{i}"], [f"m{i}"], axes=[1], keepdims=0),
        ]
    return *nodes, node("Sum", [f"m{i}" for i in range(count)], ["y"])


FILLED = (
    node("Shape", ["x"], ["sizes"]),
    node("Gather", ["sizes", "zero"], ["count"]),
    node("Concat", ["count", "many"], ["wide"], axis=0),
    node("ConstantOfShape", ["wide"], ["filled"]),
    node("ReduceMean", ["filled"], ["mean"], axes=[1]),
    node("Add", ["x", "mean"], ["sum"]),
    node("MatMul", ["sum", "W"], ["y"]),
)


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        (expanded(20), {"n": np.array([1, 1_000_000, 4]), "one": np.array([1])}),
        (FILLED, {"zero": np.array([0]), "many": np.array([1 << 25])}),
    ],
    ids=["rows", "constants"],
)
def test_values_of_a_row_are_bounded_together(save, nodes, constants):
    """The reference implementation keeps all of them, for every row of the check."""
    assert "all values of a row" in refused(save(*nodes, **constants))


def test_rows_that_a_graph_takes_at_a_time_are_bounded_with_its_values(save):
    chain = [node("Relu", [f"x{i}" if i else "x"], [f"x{i + 1}"]) for i in range(100)]
    last = node("MatMul", ["x100", "W"], ["y"])
    assert "it takes 1048576 rows at a time" in refused(save(*chain, last, rows=1 << 20))
    assert models.load(save(*chain, last, rows=1 << 10)).spec.out_features == 3


def test_a_wide_row_is_checked_in_bounded_memory(save):
    """Of a file of a hundred bytes."""
    tracemalloc.start()
    try:
        assert models.load(save(node("Relu", ["x"], ["y"]), row=(1 << 20,))).spec.out_features == 1 << 20
        assert tracemalloc.get_traced_memory()[1] < 1 << 30
    finally:
        tracemalloc.stop()


def test_inputs_are_counted(tmp_path):
    """Each node would remember all of them."""
    names = [f"i{i}" for i in range(5000)]
    nodes = [node("Concat", names, ["v0"], axis=1)]
    nodes += [node("Identity", [f"v{i}"], [f"v{i + 1}"]) for i in range(15_000)]
    given = [value_info(name, TensorProto.STRING, ["rows", 1]) for name in names]
    graph = helper.make_graph(nodes, "graph", given, [value_info("v15000", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=9)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    assert "expected 1 to 1024 inputs" in refused(tmp_path / "net.onnx")


def test_functions_that_call_functions_are_counted_before_they_are_inlined(save):
    functions = [
        helper.make_function(
            "own",
            f"F{level}",
            ["v0"],
            ["v9"],
            [
                node(f"F{level - 1}" if level else "Relu", [f"v{i}"], [f"v{i + 1}"], domain="own" if level else "")
                for i in range(9)
            ],
            OPSETS,
        )
        for level in range(12)
    ]  # fmt: skip
    call = node("F11", ["x"], ["made"], domain="own")
    last = node("MatMul", ["made", "W"], ["y"])
    assert "more than 20000 nodes" in refused(save(call, last, functions=functions))
    itself = helper.make_function(
        "own", "F11", ["a"], ["b"], [node("F11", ["a"], ["b"], domain="own")], OPSETS
    )
    assert "more than 20000 nodes" in refused(save(call, last, functions=[itself]))
    shallow = node("F1", ["x"], ["made"], domain="own")
    assert models.load(save(shallow, last, functions=functions[:2])).spec.out_features == 3


def test_graphs_with_very_many_nodes_are_refused(save):
    chain = [node("Relu", [f"x{i}" if i else "x"], [f"x{i + 1}"]) for i in range(20_001)]
    assert "more than 20000 nodes" in refused(save(*chain, LAYER))


BODY = helper.make_graph(
    [node("Identity", ["go"], ["on"]), node("Identity", ["v"], ["w"])],
    "body",
    [value_info("i", INT64, []), value_info("go", TensorProto.BOOL, []), value_info("v", INT64, None)],
    [value_info("on", TensorProto.BOOL, []), value_info("w", INT64, None)],
)  # fmt: skip
FOR_EVER = {"n": np.int64(BIG), "go": np.bool_(True), "v": np.int64(1)}


def test_a_loop_that_never_ends_is_not_run(save):
    """The check runs a graph, but only nodes that were read: one that no output of floats needs is not."""
    loop = node("Loop", ["n", "go", "v"], ["label"], body=BODY)
    for outputs in ([], [value_info("label", INT64, [])]):
        mlp = models.load(save(loop, LAYER, outputs=outputs, **FOR_EVER))
        assert mlp.spec.out_features == 3
    assert "Loop" in refused(save(loop, node("Cast", ["label"], ["f"], to=1), *added("f"), **FOR_EVER))


@pytest.mark.parametrize("name", ["y", "h", "x", "W"])
def test_a_loop_whose_result_another_node_replaces_is_not_run(save, name):
    """The reader would take the node after it, and the check run both."""
    loop = node("Loop", ["n", "go", "x"], [name], body=BODY)
    after = [node("Relu", ["x"], ["h"]), node("MatMul", ["h", "W"], ["y"])]
    assert f"{name!r} is made twice" in refused(save(loop, *after, **FOR_EVER))


@pytest.mark.timeout(20)  # it would run for ever
@pytest.mark.parametrize(
    ("domain", "op"), [("own", "Relu"), ("com.microsoft", "QuickGelu"), ("com.microsoft", "Gelu")]
)
def test_a_function_of_another_opset_is_not_run(save, domain, op):
    """onnx does not inline it, so its nodes were not read."""
    numbers = [
        node("Constant", [], [name], value=numpy_helper.from_array(each)) for name, each in FOR_EVER.items()
    ]
    loop = node("Loop", ["n", "go", "a"], ["b"], body=BODY)
    function = helper.make_function(domain, op, ["a"], ["b"], [*numbers, loop], [helper.make_opsetid("", 13)])
    path = save(
        node("MatMul", ["x", "W"], ["h"]), node(op, ["h"], ["y"], domain=domain), functions=[function]
    )
    if domain == "own":
        assert "Relu of own is not part of an MLP" in refused(path)
        return
    with pytest.warns(UserWarning, match=f"not checked against the graph, which onnx cannot run: .*{op}"):
        assert models.load(path).spec.out_features == 3


def test_weights_of_whole_numbers_are_bounded_before_they_are_scaled(save):
    """One column for many scales, and one weight for many nodes."""
    row, scales, zero = np.ones((1, 30_000), np.uint8), np.ones(30_000, np.float32), np.uint8(0)
    wide = node("DequantizeLinear", ["q", "s", "zero"], ["big"], axis=0)
    assert "too large for an MLP" in refused(save(wide, *added("big"), opset=21, q=row, s=scales, zero=zero))
    blocks = node("DequantizeLinear", ["q", "s", "zero"], ["big"], axis=0, block_size=1 << 30)
    assert "too large for an MLP" in refused(
        save(blocks, *added("big"), opset=21, q=row.T, s=scales, zero=zero)
    )
    bias = node("QGemm", ["r", "one", "zero", "q", "s", "zero", "b"], ["big"], domain="com.microsoft")
    ranges = node("DynamicQuantizeLinear", ["x"], ["r", "one", "z"])
    column = np.ones((30_000, 1), np.int32)
    assert "30000 scales" in refused(
        save(ranges, bias, *added("big"), q=np.ones((4, 30_000), np.uint8), s=scales, zero=zero, b=column)
    )
    many = [ranges, *(node("DequantizeLinear", ["q", "one", "zero"], [f"w{i}"]) for i in range(19_000))]
    path = save(*many, *added("w9"), q=np.ones((100, 1000), np.uint8), one=np.float32(1), zero=zero)
    assert "too large for an MLP" in refused(path)


def test_names_of_scaled_weights_do_not_grow_with_their_number(save):
    zero, q = np.uint8(0), np.ones((4, 3), np.uint8)
    many = [node("DequantizeLinear", ["q", "one", "zero"], [f"w{i}"]) for i in range(19_000)]
    many.append(
        node("DynamicQuantizeLinear", ["x"], ["r", "s", "z"])
    )  # without one they are constants like others
    path = save(*many, node("MatMul", ["x", "w9"], ["y"]), q=q, one=np.float32(1), zero=zero)
    begun = time.process_time()
    assert models.load(path).spec.out_features == 3
    assert time.process_time() - begun < 60  # it was hours


def test_an_import_says_that_it_was_not_checked(save):
    quick = node("QuickGelu", ["y"], ["z"], domain="com.microsoft")
    path = save(LAYER, quick, outputs=[value_info("z", TensorProto.FLOAT, None)])
    with pytest.warns(UserWarning, match="not checked against the graph, which onnx cannot run: .*QuickGelu"):
        assert models.load(path).spec.out_features == 6


# External data.


def external(name, **fields):
    """A weight (4, 3) that lies in a file."""
    made = TensorProto(
        name=name, data_type=TensorProto.FLOAT, dims=[4, 3], data_location=TensorProto.EXTERNAL
    )
    for key, text in fields.items():
        made.external_data.add(key=key, value=str(text))
    return made


@pytest.fixture
def folder(tmp_path):
    """Weights beside the file, and a secret outside of its folder, which is `tmp_path`."""
    outside = tmp_path.parent / f"{tmp_path.name}-secret"
    outside.write_bytes(bytes(48))
    (tmp_path / "weights").write_bytes(np.ones(12, np.float32).tobytes())
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "up").symlink_to(tmp_path.parent)
    (tmp_path / "hard").hardlink_to(outside)
    (tmp_path / "sub" / "weights").write_bytes(np.ones(12, np.float32).tobytes())
    os.mkfifo(tmp_path / "pipe")
    yield outside
    outside.unlink()


def read_as_onnx_1_18(tensor, base_dir):
    """It follows links, which later versions refuse."""
    fields = {entry.key: entry.value for entry in tensor.external_data}
    with open(os.path.join(base_dir, fields["location"]), "rb", opener=_at_once) as file:
        file.seek(int(fields.get("offset", 0)))
        tensor.raw_data = file.read(int(fields.get("length", -1)))


def _at_once(path, flags):
    return os.open(path, flags | os.O_NONBLOCK)


@pytest.mark.parametrize("old", [False, True])
def test_external_data_stays_inside_the_folder(save, folder, monkeypatch, old):
    if old:
        monkeypatch.setattr("onnx.external_data_helper.load_external_data_for_tensor", read_as_onnx_1_18)
    last = node("MatMul", ["x", "Z"], ["y"])
    for location in ("weights", "sub/weights"):
        assert models.load(save(last, tensors=[external("Z", location=location)])).spec.out_features == 3
    for location in (
        folder, f"../{folder.name}", f"sub/../../{folder.name}", "link", "loop", f"up/{folder.name}", "pipe", "sub", "",
        "weights\0", "missing", "hard", "sub/../weights", "weights/x", *(() if old else ("/dev/zero",)),
    ):  # fmt: skip
        assert (
            str(folder) not in refused(save(last, tensors=[external("Z", location=location)]))
            or location == folder
        )


@pytest.mark.parametrize(
    "fields", [{"offset": -4}, {"length": -4}, {"offset": BIG}, {"length": BIG}, {"offset": "x"}]
)
def test_external_data_is_inside_its_file(save, folder, fields):
    last = node("MatMul", ["x", "Z"], ["y"])
    refused(save(last, tensors=[external("Z", location="weights", **fields)]))


def test_external_data_is_read_about_once(save, folder, tmp_path):
    (tmp_path / "weights").write_bytes(bytes(16 << 20))
    many = [external(f"Z{i}", location="weights") for i in range(100)]
    assert "larger than the files" in refused(save(LAYER, tensors=many))


def test_external_data_of_an_attribute_is_not_read_from_the_working_directory(save, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    constant = node("Constant", [], ["Z"], value=external("Z", location=folder.name))
    assert "external data" in refused(save(constant, node("MatMul", ["x", "Z"], ["y"])))


@pytest.mark.parametrize("dims", [[4, BIG], [0, BIG], [4, 3, 1 << 62], [1] * 70])
def test_tensors_of_shapes_that_do_not_fit_are_refused(save, dims):
    made = TensorProto(
        name="Z", data_type=TensorProto.FLOAT, dims=dims, raw_data=b"" if 0 in dims else bytes(48)
    )
    refused(save(node("MatMul", ["x", "Z"], ["y"]), tensors=[made]))


def test_deep_nesting_is_refused(save):
    nested = b""
    for _ in range(500):  # of attributes that hold graphs; protobuf stops at 100 levels
        for tag in (b"\x32", b"\x2a", b"\x0a"):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            size, length = len(nested), b""
            while size > 127:
                length, size = length + bytes([size & 127 | 128]), size >> 7
            nested = tag + length + bytes([size]) + nested
    path = save(LAYER)
    size = len(nested)
    path.write_bytes(b"\x3a" + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + nested)
    assert "not a readable ONNX file" in refused(path)
