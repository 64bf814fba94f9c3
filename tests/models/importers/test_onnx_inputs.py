# SPDX-License-Identifier: Apache-2.0
"""ONNX files with several inputs, ids, words and codes: what becomes of them, against onnx's own reference, and what is
refused at the door or at import."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fused_mlp import models
from fused_mlp.models import ModelLoadError
from fused_mlp.models.importers.onnx.categories import Categories
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.inputs import InputError

TYPES = {
    "float32": TensorProto.FLOAT,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "bool": TensorProto.BOOL,
    "object": TensorProto.STRING,
}
WORDS = ["ant", "bee", "cat"]


class Graph:
    """Inputs are given with rows to try them with; every operand that is no name is an initializer."""

    def __init__(self, **inputs):
        self.feeds = {name: np.asarray(values) for name, values in inputs.items()}
        self.nodes, self.initializers = [], []

    def node(self, op, *inputs, domain="", **attributes):
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        made = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [made], domain=domain, **attributes))
        return made

    def ml(self, op, *inputs, **attributes):
        return self.node(op, *inputs, domain="ai.onnx.ml", **attributes)

    def constant(self, value):
        name = f"c{len(self.initializers)}"
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def scores(self, x, width=1):
        """A last layer, so that the program has a step of floats."""
        return self.node("MatMul", x, np.linspace(-1, 1, width * 2).reshape(width, 2))

    def model(self, *outputs, ml=3, kind=TensorProto.FLOAT):
        inputs = [
            helper.make_tensor_value_info(name, TYPES[each.dtype.name], ["rows", *each.shape[1:]])
            for name, each in self.feeds.items()
        ]
        results = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "g", inputs, results, self.initializers)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", ml)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def words(*values):
    return np.array(values, object)


def read(model, tmp_path):
    onnx.save(model, tmp_path / "m.onnx")
    return models.from_onnx(tmp_path / "m.onnx")


def run(mlp, feeds):
    record = np.concatenate([each.pack(feeds[each.name]) for each in mlp.spec.inputs], axis=1)
    return evaluate(mlp, record)


def agree(graph, output, tmp_path, **options):
    """Reads it, compares the rows of the graph with the reference, and returns the model."""
    model = graph.model(output, **options)
    mlp = read(model, tmp_path)
    (expected,) = ReferenceEvaluator(model).run(None, graph.feeds)
    np.testing.assert_allclose(
        run(mlp, graph.feeds), expected.reshape(len(expected), -1), rtol=1e-5, atol=1e-6
    )
    return mlp


def test_inputs_keep_their_names_types_shapes_and_order(tmp_path):
    numbers = np.ones((2, 3), np.float32)
    g = Graph(z=numbers, **{"a/b:0": np.array([1, 2], np.int32)}, flag=np.array([[True], [False]]))
    rows = g.node("Gather", np.eye(4), "a/b:0")
    flag = g.node("Cast", "flag", to=TensorProto.FLOAT)
    mlp = agree(g, g.scores(g.node("Concat", rows, "z", flag, axis=1), 8), tmp_path)
    assert [(each.name, each.dtype, each.shape) for each in mlp.spec.inputs] == [
        ("z", "float32", (3,)),
        ("a/b:0", "int32", ()),
        ("flag", "bool", ()),
    ]


def test_a_column_may_be_sent_with_its_axis_and_without(tmp_path):
    g = Graph(x=words(["ant"], ["?"]), y=np.ones((2, 2), np.float32))
    found = g.ml("LabelEncoder", "x", keys_strings=WORDS, values_floats=[1.0, 2.0, 3.0], default_float=9.0)
    mlp = agree(g, g.scores(g.node("Concat", found, "y", axis=1), 3), tmp_path)
    flat = run(mlp, {**g.feeds, "x": g.feeds["x"][:, 0]})
    np.testing.assert_array_equal(flat, run(mlp, g.feeds))


def test_one_input_of_floats_stays_one_without_a_name(tmp_path):
    g = Graph(x=np.ones((2, 3), np.float32))
    assert read(g.model(g.scores("x", 3)), tmp_path).spec.inputs is None


def test_an_input_that_nothing_reads_is_still_accepted(tmp_path):
    g = Graph(x=np.ones((2, 3), np.float32), unused=words(["a"], ["b"]), other=np.array([7, 8]))
    agree(g, g.scores("x", 3), tmp_path)


def test_an_id_beyond_its_table_is_refused_with_its_row(tmp_path):
    g = Graph(item=np.array([0, 4]))
    mlp = agree(g, g.scores(g.node("Gather", np.arange(10.0).reshape(5, 2), "item"), 2), tmp_path)
    with pytest.raises(InputError, match="input 'item', row 1: expected an id from 0 to 4, got 5"):
        run(mlp, {"item": np.array([0, 5])})


# -- words and codes

ENCODERS = {
    "words to numbers": (
        words(["ant"], ["cat"], ["?"]),
        {"keys_strings": WORDS, "values_int64s": [4, 5, 6], "default_int64": 9},
        {},
    ),
    "words to floats": (
        words(["ant"], ["cat"], ["?"]),
        {"keys_strings": WORDS, "values_floats": [0.5, -1.0, 2.0], "default_float": 9.5},
        {},
    ),
    "codes to floats": (
        np.array([[3], [5], [4], [-100]]),
        {"keys_int64s": [3, 5, 7], "values_floats": [0.5, -1.0, 2.0], "default_float": 9.5},
        {},
    ),
    "codes far apart": (
        np.array([[3], [5_000_000_000], [4], [-(1 << 60)]]),
        {"keys_int64s": [3, 5_000_000_000, -(1 << 60)], "values_int64s": [1, 2, 3], "default_int64": 0},
        {},
    ),
    "floats to numbers": (
        np.array([[0.5], [1.5], [0.75]], np.float32),
        {"keys_floats": [0.5, 1.5], "values_floats": [3.0, 4.0], "default_float": -7.0},
        {},
    ),
    "tensors": (
        words(["ant"], ["cat"], ["?"]),
        {
            "keys_tensor": numpy_helper.from_array(np.array(WORDS, object)),
            "values_tensor": numpy_helper.from_array(np.array([1.5, 2.5, 3.5], np.float32)),
            "default_tensor": numpy_helper.from_array(np.array([8.5], np.float32)),
        },
        {"ml": 4},
    ),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_label_encoders_of_every_form_answer_as_the_reference(name, tmp_path):
    values, attributes, options = ENCODERS[name]
    g = Graph(x=values, other=np.ones((len(values), 1), np.float32))
    found = g.ml("LabelEncoder", "x", **attributes)
    agree(g, g.scores(g.node("Cast", found, to=TensorProto.FLOAT)), tmp_path, **options)


def test_words_may_become_other_words_before_they_become_numbers(tmp_path):
    g = Graph(x=words(["ant"], ["bee"], ["?"]))
    kind = g.ml(
        "LabelEncoder",
        "x",
        keys_strings=WORDS,
        values_strings=["insect", "insect", "mammal"],
        default_string="none",
    )
    number = g.ml(
        "LabelEncoder", kind, keys_strings=["insect", "mammal"], values_int64s=[1, 2], default_int64=0
    )
    shifted = g.node("Mod", g.node("Add", number, np.array(5)), np.array(3))
    agree(
        g,
        g.scores(
            g.node("Reshape", g.node("Gather", np.arange(6.0).reshape(3, 2), shifted), np.array([-1, 2])), 2
        ),
        tmp_path,
    )


def test_words_without_a_rule_for_others_are_refused_by_name(tmp_path):
    g = Graph(city=words(["ant"], ["cat"]))
    found = g.ml("LabelEncoder", "city", keys_strings=WORDS, values_int64s=[0, 1, 2])
    mlp = agree(g, g.scores(g.node("Cast", found, to=TensorProto.FLOAT)), tmp_path)
    with pytest.raises(InputError, match="input 'city': 'dog' is not in its vocabulary of 3"):
        run(mlp, {"city": words(["dog"])})


@pytest.mark.parametrize(
    "values", [words(["ant"], ["cat"], ["?"]), np.array([[3], [5], [99]])], ids=["words", "codes"]
)
def test_a_one_hot_code_has_zeros_for_what_it_does_not_know(values, tmp_path):
    cats = {"cats_strings": WORDS} if values.dtype == object else {"cats_int64s": [3, 5, 7]}
    g = Graph(x=values)
    hot = g.node("Reshape", g.ml("OneHotEncoder", "x", zeros=1, **cats), np.array([-1, 3]))
    mlp = agree(g, g.scores(hot, 3), tmp_path)
    assert [step.op for step in mlp.spec.steps] == [
        "embedding"
    ]  # the columns of the layer: no code is ever made


def test_columns_of_words_refuse_the_words_of_other_columns(tmp_path):
    g = Graph(x=words(["ant", "red"], ["cat", "blue"]))
    parts = []
    for at, cats in enumerate((WORDS, ["blue", "red"])):
        column = g.node("Gather", "x", np.array([at]), axis=1)
        parts.append(
            g.node(
                "Reshape",
                g.ml("OneHotEncoder", column, zeros=0, cats_strings=cats),
                np.array([-1, len(cats)]),
            )
        )
    mlp = agree(g, g.scores(g.node("Concat", *parts, axis=1), 5), tmp_path)
    with pytest.raises(InputError, match="input 'x'"):
        run(mlp, {"x": words(["ant", "bee"])})


def test_words_of_several_inputs_side_by_side_share_a_vocabulary(tmp_path):
    g = Graph(a=words(["ant"], ["?"]), b=words(["red"], ["blue"]))
    alone = g.ml("LabelEncoder", "a", keys_strings=["elk"], values_floats=[4.0], default_float=-2.0)
    both = g.node("Concat", "a", "b", axis=1)
    parts = [alone]
    for at, keys in enumerate((["ant", "bee"], ["blue", "red"])):
        column = g.ml("ArrayFeatureExtractor", both, np.array(at))
        parts.append(
            g.ml("LabelEncoder", column, keys_strings=keys, values_floats=[1.0, 2.0], default_float=-1.0)
        )
    mlp = agree(g, g.scores(g.node("Concat", *parts, axis=1), 3), tmp_path)
    assert (
        mlp.spec.inputs[0].vocabulary == mlp.spec.inputs[1].vocabulary == ("elk", "ant", "bee", "blue", "red")
    )


def test_a_wrong_reading_of_words_is_found_by_the_check(monkeypatch, tmp_path):
    """Only a word that is not known is read wrong."""
    mapped = Categories.mapped
    monkeypatch.setattr(
        Categories, "mapped", lambda self, found, default, dtype: mapped(self, found, 1, dtype)
    )
    g = Graph(x=words(["ant"]))
    found = g.ml("LabelEncoder", "x", keys_strings=WORDS, values_int64s=[0, 1, 2], default_int64=7)
    with pytest.raises(ModelLoadError, match="does not compute what the model does"):
        read(g.model(g.scores(g.node("Cast", found, to=TensorProto.FLOAT))), tmp_path)


# -- whole numbers

BIG = 1 << 53
RULES = {
    "a remainder": lambda g, x: g.node("Mod", x, np.array(4)),
    "a remainder as in C, clipped": lambda g, x: g.node(
        "Clip", g.node("Mod", x, np.array(4), fmod=1), np.array(0), np.array(3)
    ),
    "a limit above": lambda g, x: g.node("Min", g.node("Max", x, np.array(0)), np.array(3)),
    "a number for another": lambda g, x: g.node(
        "Clip", g.node("Where", g.node("Equal", x, np.array(-1)), np.array(2), x), np.array(0), np.array(3)
    ),
    "a shift": lambda g, x: g.node("Clip", g.node("Sub", x, np.array(BIG)), np.array(0), np.array(3)),
}


@pytest.mark.parametrize("name", RULES)
def test_arithmetic_on_ids_is_exact_in_64_bits(name, tmp_path):
    g = Graph(x=np.array([-9, -1, 0, 3, 4, BIG, BIG + 1, -BIG - 1]))
    agree(g, g.scores(g.node("Gather", np.arange(8.0).reshape(4, 2), RULES[name](g, "x")), 2), tmp_path)


@pytest.mark.parametrize("op", ["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("opposite", [False, True])
def test_ids_are_compared_exactly(op, turned, opposite, tmp_path):
    g = Graph(x=np.array([[0], [BIG], [BIG + 1], [BIG + 2], [-BIG]]))
    pair = (np.array(BIG + 1), "x") if turned else ("x", np.array(BIG + 1))
    found = g.node(op, *pair)
    found = g.node("Not", found) if opposite else found
    agree(g, g.scores(g.node("Cast", found, to=TensorProto.FLOAT)), tmp_path)


def test_seconds_are_subtracted_before_they_become_floats(tmp_path):
    g = Graph(time=np.array([[1_700_000_003], [1_700_000_004]]))
    age = g.node("Cast", g.node("Sub", "time", np.array(1_700_000_000)), to=TensorProto.FLOAT)
    agree(g, g.scores(age), tmp_path)


def test_floats_that_a_graph_casts_to_ids_are_cut_off(tmp_path):
    g = Graph(x=np.array([[0.5, 2.9], [1.5, 0.0]], np.float32))
    column = g.node("Cast", g.node("Gather", "x", np.array(1), axis=1), to=TensorProto.INT64)
    rows = g.node("Gather", np.arange(6.0).reshape(3, 2), column)
    agree(g, g.scores(g.node("Concat", rows, "x", axis=1), 4), tmp_path)


# -- missing numbers, truths


@pytest.mark.parametrize("missing", [float("nan"), -1.0])
@pytest.mark.parametrize("by", [[5.0], [5.0, 6.0]])
def test_missing_floats_are_filled(missing, by, tmp_path):
    g = Graph(
        x=np.array([[missing, 1.0], [2.0, missing], [3.0, 4.0]], np.float32), y=np.ones((3, 1), np.float32)
    )
    filled = g.ml("Imputer", "x", imputed_value_floats=by, replaced_value_float=missing)
    agree(g, g.scores(filled, 2), tmp_path)


def test_truths_are_combined(tmp_path):
    g = Graph(a=np.array([[0.0], [1.0], [2.0], [np.nan]], np.float32), b=np.array([[1], [0], [2], [3]]))
    high, low = g.node("Greater", "a", np.array([0.5])), g.node("Less", "b", np.array(2))
    parts = [
        g.node("And", high, low),
        g.node("Or", high, low),
        g.node("Xor", high, low),
        g.node("Not", g.node("IsNaN", "a")),
    ]
    x = g.node("Cast", g.node("Concat", *parts, axis=1), to=TensorProto.FLOAT)
    agree(g, g.scores(x, 4), tmp_path)


# -- what becomes part of the layers


def test_a_scaler_and_codes_side_by_side_become_part_of_the_first_layer(tmp_path):
    g = Graph(x=np.array([[1.0, 2.0], [3.0, -4.0]], np.float32), word=words(["ant"], ["?"]))
    scaled = g.ml("Scaler", "x", offset=[0.5, 1.5], scale=[2.0, 3.0])
    hot = g.node("Reshape", g.ml("OneHotEncoder", "word", cats_strings=WORDS), np.array([-1, 3]))
    mlp = agree(g, g.scores(g.node("Concat", scaled, hot, axis=1), 5), tmp_path)
    assert [step.op for step in mlp.spec.steps] == ["slice", "linear", "slice", "embedding", "add"]


def test_bins_of_scikit_learn_become_one_step(tmp_path):
    g = Graph(x=np.array([[-9.0], [1.0], [1.5], [2.0], [99.0], [np.inf]], np.float32))
    below = g.node("Cast", g.node("Less", "x", np.array([1.0, 2.0])), to=TensorProto.FLOAT)
    last = g.node("Add", g.node("Mul", "x", np.array([0.0])), np.array([1.0]))
    place = g.node("ArgMax", g.node("Concat", below, last, axis=1), axis=1)
    hot = g.node("Reshape", g.ml("OneHotEncoder", place, cats_int64s=[0, 1, 2]), np.array([-1, 3]))
    model = g.model(g.scores(hot, 3))
    mlp = read(model, tmp_path)
    with np.errstate(invalid="ignore"):  # infinity times 0
        (expected,) = ReferenceEvaluator(model).run(None, g.feeds)
    np.testing.assert_allclose(evaluate(mlp, g.feeds["x"]), expected, rtol=1e-6)
    assert [step.op for step in mlp.spec.steps] == ["bucketize", "embedding"]


# -- outputs


def test_class_labels_are_left_out_and_named_but_numbers_alone_are_answered(tmp_path):
    g = Graph(x=np.array([[1.0], [-2.0]], np.float32))
    scores = g.scores("x")
    best = g.node("ArgMax", scores, axis=1, keepdims=0)
    model = g.model(scores, best)
    model.graph.output[1].type.tensor_type.elem_type = TensorProto.INT64
    mlp = read(model, tmp_path)
    assert mlp.spec.out_features == 2
    assert f"without its output '{best}'" in mlp.source
    alone = read(g.model(best, kind=TensorProto.INT64), tmp_path)
    assert evaluate(alone, g.feeds["x"])[:, 0].tolist() == [1.0, 0.0]


# -- refusals


def refuse_text(g):
    return g.ml(
        "LabelEncoder", g.node("StringNormalizer", "x"), keys_strings=WORDS, values_floats=[1.0, 2.0, 3.0]
    )


def refuse_many_rules(g):
    x = "x"
    for divisor in range(50, 62):
        x = g.node("Mod", g.node("Add", x, np.array(3)), np.array(divisor))
    return g.node("Gather", np.eye(80), x)


REFUSED = {
    "more arithmetic on ids than the door does": (np.array([1]), refuse_many_rules, "rules: .* at most 16"),
    "work on text": (words("ant"), refuse_text, "node 0: StringNormalizer of words is not read"),
    "columns of a table": (
        np.array([1]),
        lambda g: g.node("Gather", np.eye(4), "x", axis=1),
        "node 0: Gather: expected axis 0 of a table",
    ),
    "an answer in words": (
        words(["ant"]),
        lambda g: g.ml("LabelEncoder", "x", keys_strings=WORDS, values_strings=WORDS),
        "expected numbers, got texts",
    ),
    "a row without a width": (
        np.ones((1, 0), np.int64),
        lambda g: g.node("Neg", "x"),
        r"input 'x' has shape \(None, None\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_by_the_name_of_its_node(name, tmp_path):
    values, make, text = REFUSED[name]
    g = Graph(x=values)
    with pytest.raises(ModelLoadError, match=text) as caught:
        read(g.model(make(g)), tmp_path)
    assert "\n" not in str(caught.value)
