# SPDX-License-Identifier: Apache-2.0
"""Format 2, `model.json` with any program: random ones survive being saved, whatever else a file says is refused in one
line, soon, and without the memory that it asks for; files of format 1 load for ever."""

import copy
import json
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fused_mlp import models
from fused_mlp.models import Mlp, MlpSpec, ModelLoadError
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.spec import MAX_FEATURES, MAX_STEPS
from tests.support.random_programs import random_mlp, random_weights

DATA = Path(__file__).parents[1] / "data"
LIMIT_S = 30  # generous, for a busy machine: it takes a second at most on a quiet one


def step(op, name, source="input", **fields):
    return {"op": op, "name": name, "input": source, **fields}


def linear(name, source="input", out_features=4, **fields):
    return step("linear", name, source, out_features=out_features, **fields)


def concat(name, *inputs):
    return {"op": "concat", "name": name, "inputs": list(inputs)}


def relu(name, source="input"):
    return step("elementwise", name, source, function="relu")


def write(path, spec, tensors=None, **fields):
    """A version directory with this spec, and tensors that may have nothing to do with it."""
    path.mkdir(exist_ok=True)
    content = {"format": "fused-mlp/2", "spec": {"in_features": 4, **spec}, **fields}
    (path / "model.json").write_text(spec if isinstance(spec, str) else json.dumps(content))
    header = json.dumps(tensors or {}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def refuse(path, text):
    started = time.monotonic()
    with pytest.raises(ModelLoadError, match=text) as caught:
        models.load(path)
    assert time.monotonic() - started < LIMIT_S
    assert str(path) in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2500


# -- what is saved


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    steps=st.integers(1, 30),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
)
def test_random_programs_are_loaded_as_they_were_saved(tmp_path_factory, seed, steps, dtype):
    mlp = random_mlp(seed, steps=steps, max_width=9, dtype=dtype)
    path = tmp_path_factory.mktemp("model") / "1"
    models.save(mlp, path)
    loaded = models.load(path)
    assert loaded.spec == mlp.spec
    assert loaded.tensors().keys() == mlp.tensors().keys()
    for name, tensor in mlp.tensors().items():
        assert loaded.tensors()[name].dtype == tensor.dtype
        assert np.array_equal(loaded.tensors()[name], tensor)
    assert json.loads((path / "model.json").read_text())["format"] == "fused-mlp/2"


def test_notes_heads_shapes_and_shared_weights_are_kept(tmp_path):
    spec = MlpSpec.model_validate(
        {
            "in_features": 4,
            "steps": [
                linear("a.fc"),
                linear("again", "a.fc", weights="a.fc"),
                linear("v", "again", 1, bias=False),
            ],
            "outputs": [{"name": "pi", "value": "again"}, {"name": "v", "value": "v", "squeeze": True}],
            "input_shape": (2, 2),
            "labels": ["a", "b", "c", "ü\n"],
            "description": "two heads",
        }
    )
    mlp = random_weights(spec).annotated(example=[1, 2, 3, 4.5], source="a test")
    models.save(mlp, tmp_path / "1")
    loaded = models.load(tmp_path / "1")
    assert (loaded.spec, loaded.example, loaded.source) == (mlp.spec, mlp.example, mlp.source)
    assert sorted(loaded.tensors()) == ["a.fc.bias", "a.fc.weight", "v.weight"]


@pytest.mark.parametrize("path", sorted((DATA / "format-1").iterdir()), ids=lambda path: path.name)
def test_files_of_format_1_compute_what_they_always_did(path, tmp_path):
    expected = json.loads((path / "expected.json").read_text())
    mlp = models.load(path)
    x = np.array(expected["x"])
    np.testing.assert_allclose(evaluate(mlp, x), expected["y"], rtol=1e-12, atol=1e-12)
    assert mlp.spec.layers is not None
    models.save(mlp, tmp_path / "1")
    assert models.load(tmp_path / "1").spec == mlp.spec


# -- what is refused

NORM = {"op": "norm", "name": "n", "input": "input", "kind": "layer"}
SPECS = {
    "a cycle": (
        {"steps": [linear("a", "b"), linear("b", "a")]},
        "step 'a' reads 'b', which no step before it makes",
    ),
    "a step that reads itself": ({"steps": [linear("a", "a")]}, "step 'a' reads 'a'"),
    "a missing value": ({"steps": [linear("a"), linear("b", "c")]}, "step 'b' reads 'c'"),
    "two steps of one name": (
        {"steps": [linear("a"), linear("a", "a")]},
        "step 'a': there is a value of that name",
    ),
    "a step named like the input": (
        {"steps": [linear("input")]},
        "step 'input': there is a value of that name",
    ),
    "a value that nothing uses": ({"steps": [linear("a"), linear("b")]}, "step 'a': nothing uses its value"),
    "no steps": ({"steps": []}, "spec.steps: "),
    "steps that are a number": ({"steps": 5}, "spec.steps: "),
    "steps that are an object": ({"steps": {"a": 1}}, "spec.steps: "),
    "a step that is a list": ({"steps": [[]]}, "spec.steps.0: "),
    "a step without an operation": ({"steps": [{}]}, "spec.steps.0: .*'op'"),
    "an unknown operation": ({"steps": [step("conv", "a")]}, "spec.steps.0: .*'conv'"),
    "an unknown field": ({"steps": [linear("a", stride=2)]}, "spec.steps.0.linear.stride: Extra inputs"),
    "a field with a line break": ({"steps": [linear("a")], "x\ny": 1}, "spec.x.y: Extra inputs"),
    "a field of a million letters": ({"steps": [linear("a")], "x" * 10**6: 1}, "spec.xxx"),
    "a name with a line break": ({"steps": [linear("a\nb")]}, "spec.steps.0.linear.name: "),
    "an endless name": ({"steps": [linear("a" * 201)]}, "spec.steps.0.linear.name: "),
    "a name that leads elsewhere": ({"steps": [linear("../../a")]}, "spec.steps.0.linear.name: "),
    "a width of zero": ({"steps": [linear("a", out_features=0)]}, "spec.steps.0.linear.out_features: "),
    "a huge width": ({"steps": [linear("a", out_features=1 << 40)]}, "less than or equal to 1048576"),
    "an endless width": (
        {"steps": [linear("a", out_features=10**400)]},
        "spec.steps.0.linear.out_features: ",
    ),
    "a width that is no whole number": ({"steps": [linear("a", out_features=4.5)]}, "valid integer"),
    "a width that is text": ({"steps": [linear("a", out_features="4")]}, "valid integer"),
    "a yes that is a number": ({"steps": [linear("a", bias=1)]}, "spec.steps.0.linear.bias: .*boolean"),
    "a concat that is too wide": (
        {"steps": [concat("a", *["input"] * 1024), concat("b", *["a"] * 1024)]},
        "step 'b': 4194304 features, expected at most 1048576",
    ),
    "values of gigabytes without a weight": (
        {
            "steps": [
                concat("a", *["input"] * 512),
                concat("e-1", *["a"] * 512),
                *(relu(f"e{i}", f"e{i - 1}") for i in range(4000)),
            ]
        },
        f"step 'e14': all values up to it have 16779268 features, expected at most {MAX_FEATURES}",
    ),
    "outputs that are too wide": (
        {
            "steps": [concat("a", *["input"] * 512), concat("b", *["a"] * 512)],
            "outputs": [{"name": str(i), "value": "b"} for i in range(2)],
        },
        "outputs: 2097152 features, expected at most 1048576",
    ),
    "a concat of one": ({"steps": [concat("a", "input")]}, "spec.steps.0.concat.inputs: .*at least 2"),
    "a concat of a hundred thousand": (
        {"steps": [concat("a", *["input"] * 10**5)]},
        "spec.steps.0.concat.inputs: .*at most 1024",
    ),
    "a sum of three": (
        {"steps": [{"op": "add", "name": "a", "inputs": ["input"] * 3}]},
        "spec.steps.0.add.inputs",
    ),
    "a sum of other widths": (
        {"steps": [linear("a", out_features=3), {"op": "add", "name": "b", "inputs": ["input", "a"]}]},
        "step 'b': expected two values of the same width, got 4 and 3",
    ),
    "a slice outside": (
        {"steps": [step("slice", "a", start=2, stop=5)]},
        r"step 'a': \[2, 5\) is no part of 4",
    ),
    "an empty slice": (
        {"steps": [step("slice", "a", start=2, stop=2)]},
        r"step 'a': \[2, 2\) is no part of 4",
    ),
    "a negative slice": ({"steps": [step("slice", "a", start=-2, stop=2)]}, "spec.steps.0.slice.start: "),
    "an eps below zero": (
        {"steps": [{**NORM, "eps": -1e-5}]},
        "spec.steps.0.norm.eps: .*greater than or equal to 0",
    ),
    "an absurd eps": ({"steps": [{**NORM, "eps": 1e30}]}, "spec.steps.0.norm.eps: .*less than or equal to 1"),
    "an infinite eps": ({"steps": [{**NORM, "eps": float("inf")}]}, "spec.steps.0.norm.eps: .*finite"),
    "an eps that is no number": (
        {"steps": [{**NORM, "eps": float("nan")}]},
        "spec.steps.0.norm.eps: .*finite",
    ),
    "an unknown norm": ({"steps": [{**NORM, "kind": "batch"}]}, "spec.steps.0.norm.kind: "),
    "an unknown dtype": ({"steps": [linear("a")], "dtype": "float64"}, "spec.dtype: "),
    "a dtype that is a list": ({"steps": [linear("a")], "dtype": ["float32"]}, "spec.dtype: "),
    "an output that is no value": (
        {"steps": [linear("a")], "outputs": [{"value": "b"}]},
        "there is no value 'b'",
    ),
    "no output": ({"steps": [linear("a")], "outputs": []}, "spec.outputs: .*at least 1"),
    "outputs of one name": (
        {"steps": [linear("a")], "outputs": [{"value": "a"}] * 2},
        "two outputs have the same name",
    ),
    "too many outputs": (
        {"steps": [linear("a")], "outputs": [{"name": f"o{i}", "value": "a"} for i in range(10**5)]},
        "spec.outputs: .*at most 64",
    ),
    "a squeeze of several": (
        {"steps": [linear("a")], "outputs": [{"value": "a", "squeeze": True}]},
        "only one feature can be squeezed, not 4",
    ),
    "an input of another shape": (
        {"steps": [linear("a")], "input_shape": [3, 2]},
        r"\(3, 2\) has not 4 features",
    ),
    "a million labels": ({"steps": [linear("a")], "labels": ["a"] * 10**6}, "1000000 labels for 4 outputs"),
    "labels that are numbers": ({"steps": [linear("a")], "labels": [1] * 10**6}, "spec.labels.0: .*string"),
    "shared weights of other shapes": (
        {"steps": [linear("a", out_features=3), linear("b", "a", 4, weights="a")]},
        "step 'b': other shapes than the step that it shares 'a' with",
    ),
    "layers of format 1": ({"steps": [linear("a")], "layers": []}, "spec.layers: format 2 has steps"),
    "too many steps": ({"steps": [relu("a")] * (MAX_STEPS + 1)}, f"spec.steps: .*at most {MAX_STEPS}"),
    "a hundred thousand steps": ({"steps": [relu("a")] * 10**5}, f"spec.steps: .*at most {MAX_STEPS}"),
    "a million steps of nothing": ({"steps": [{}] * 10**6}, "spec.steps.0: "),
    "many unknown fields": ({"steps": [linear("a")], **{f"k{i}": 0 for i in range(10**5)}}, "100000 errors"),
}
FUNCTIONS = {
    "nothing": ("", "expected a formula"),
    "code": ("__import__('os').system('true')", "expected x, numbers"),
    "a name that is none": ("open", "there is no function 'open'"),
    "an attribute": ("x.real", "expected x, numbers"),
    "a comprehension": ("[x for x in x]", "expected x, numbers"),
    "an endless text": ("x + " * 10**5 + "x", "400001 characters: expected at most 1024"),
    "a power": ("x**9**9**9", "expected x, numbers"),
    "many operations": ("+".join(["x"] * 500), "operations"),
    "many levels": ("relu(" * 170 + "x" + ")" * 170, "operations"),
    "many brackets": ("(" * 500 + "x" + ")" * 500, "expected a formula"),
    "many signs": ("-" * 1000 + "x", "operations|deep"),
    "squares of squares": ("square(" * 40 + "x" + ")" * 40, "operations"),
    "an endless number": ("9" * 1000 + " * x", "finite"),
    "an infinite number": ("x * 1e999", "finite"),
    "a number that is none": ("x + 0 / 0", "finite"),
    "a constant": ("1 + 1", "does not depend on x"),
    "a line break": ("x\n+ 1", "expected a formula"),
    "a zero byte": ("x\0", "expected a formula"),
    "a parameter that is missing": ("clip(x, 1)", "clip: expected 2 numbers"),
    "a parameter that is a value": ("leaky_relu(x, x)", "leaky_relu: expected at most 1 numbers"),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_program_that_cannot_be_is_refused_by_name(name, tmp_path):
    spec, text = SPECS[name]
    refuse(write(tmp_path / "m", spec), text)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_cannot_be_is_refused(name, tmp_path):
    function, text = FUNCTIONS[name]
    spec = {"steps": [step("elementwise", "a", function=function)]}
    refuse(write(tmp_path / "m", spec), f"spec.steps.0.elementwise.function: .*{text}")
    gated = {"steps": [step("gated", "a", out_features=2, function=function)]}
    refuse(write(tmp_path / "m", gated), "spec.steps.0.gated.function: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 10**6, "recursion limit"),
        ('{"a":' * 10**6, "recursion limit"),
        ('{"format": "safetensors/1", "activation": ' + "[" * 10**5, "not JSON: maximum recursion"),
        ('{"format": "fused-mlp/2", "spec": {"in_features": 4, "steps": [', "Invalid JSON"),
        ('{"format": "fused-mlp/2"}', "spec: Field required"),
        ('{"format": "fused-mlp/2", "spec": 1}', "spec: "),
        ('{"format": [], "spec": {}}', "format: "),
        ('{"format": "fused-mlp/1", "spec": {"in_features": 4, "layers": 5}}', "layers: "),
        ('{"format": "fused-mlp/1", "spec": {"in_features": 4, "layers": [5]}}', "spec"),
        (
            '{"format": "fused-mlp/1", "spec": {"in_features": 4, "steps": []}}',
            "spec.steps: format 1 has layers",
        ),
        ("\0" * 1000, "Invalid JSON"),
        ("", "Invalid JSON"),
    ],
    ids=lambda text: repr(text[:40]),
)
def test_what_is_no_model_description_is_refused(text, words, tmp_path):
    path = write(tmp_path / "m", {})
    (path / "model.json").write_text(text)
    refuse(path, words)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_layers_are_of_format_1_alone(number, tmp_path):
    path = write(tmp_path / "m", {"layers": [{"out_features": 2}]}, format=f"fused-mlp/{number}")
    refuse(path, f"spec.layers: format {number} has steps; layers are of format fused-mlp/1")


def test_a_description_may_name_another_format(small_mlp, tmp_path):
    mlp = small_mlp.annotated(description="was safetensors/1 before")
    models.save(mlp, tmp_path / "m" / "1")
    assert models.load(tmp_path / "m" / "1").spec == mlp.spec


def test_a_huge_description_is_not_read(tmp_path):
    path = write(tmp_path / "m", {})
    with (path / "model.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    refuse(path, "larger than 64 MiB")


WEIGHTS = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}


@pytest.mark.parametrize(
    ("tensors", "size", "text"),
    [
        ({}, 0, r"tensor 'a.weight' is missing: the spec expects shape \(4, 4\)"),
        (
            {"a.weight": WEIGHTS, "b.weight": {**WEIGHTS, "data_offsets": [64, 128]}},
            128,
            "'b.weight' is not part of",
        ),
        ({"a.weight": {**WEIGHTS, "shape": [16]}}, 64, r"'a.weight': expected shape \(4, 4\), got \(16,\)"),
        (
            {"a.weight": {**WEIGHTS, "shape": [2, 8]}},
            64,
            r"'a.weight': expected shape \(4, 4\), got \(2, 8\)",
        ),
        ({"a.weight": {**WEIGHTS, "dtype": "I32"}}, 64, "'a.weight' is I32, but model.json says F32"),
        ({"a.weight": WEIGHTS}, 60, "not a readable safetensors file"),
        ({"a.weight": {**WEIGHTS, "shape": [1 << 31, 1 << 31]}}, 64, "not a readable safetensors file"),
        ({"a.weight": {**WEIGHTS, "data_offsets": [0, 1 << 60]}}, 64, "not a readable safetensors file"),
        (
            {"a.weight": WEIGHTS, "x\n" * 10**5: {**WEIGHTS, "shape": [0], "data_offsets": [64, 64]}},
            64,
            "is not part of",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_from_the_header(tensors, size, text, tmp_path):
    path = write(tmp_path / "m", {"steps": [linear("a", bias=False)]}, tensors)
    with (path / "model.safetensors").open("ab") as file:
        file.write(bytes(size))
    refuse(path, text)


def test_what_a_file_merely_claims_is_not_allocated(tmp_path):
    """2^20 x 2^20 floats are 4 TiB."""
    wide = 1 << 20
    steps = [linear("a", out_features=wide), linear("b", "a", wide)]
    path = write(tmp_path / "m", {"in_features": wide, "steps": steps}, {"a.weight": WEIGHTS})
    with (path / "model.safetensors").open("ab") as file:
        file.write(bytes(64))
    tracemalloc.start()
    try:
        refuse(path, "'a.bias' is missing|expected shape")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_largest_programs_are_checked_in_time(tmp_path):
    """Nothing in the checks is quadratic in the number of steps, nor in that of the inputs of a concat."""
    chain = [relu(f"r{i}", f"r{i - 1}" if i else "input") for i in range(MAX_STEPS)]
    wide = []
    for i in range(MAX_STEPS // 2):
        wide.append(concat(f"c{i}", *[f"s{i - 1}" if i else "input"] * 250))
        wide.append(step("slice", f"s{i}", f"c{i}", start=0, stop=4))
    functions = [
        step(
            "elementwise",
            f"f{i}",
            f"f{i - 1}" if i else "input",
            function=f"{i % 256} * x * sin(x)" + " + x * exp(x)" * 11,  # each is parsed once
        )
        for i in range(MAX_STEPS)
    ]
    for steps in (chain, wide, functions):
        started = time.monotonic()
        mlp = models.load(write(tmp_path / "m", {"steps": steps}))
        assert len(mlp.spec.steps) == MAX_STEPS
        assert len(mlp.spec.summary()) < 50_000
        assert time.monotonic() - started < LIMIT_S


# -- fuzzing

GOOD = {
    "in_features": 6,
    "steps": [
        linear("blocks.0.fc", out_features=5),
        {"op": "norm", "name": "norm", "input": "blocks.0.fc", "kind": "rms", "eps": 1e-6, "bias": False},
        step("gated", "glu", "norm", out_features=5, function="silu"),
        step("elementwise", "act", "glu", function="x * sigmoid(1.702 * x)"),
        {"op": "add", "name": "sum", "inputs": ["act", "blocks.0.fc"]},
        concat("cat", "sum", "input"),
        step("slice", "part", "cat", start=2, stop=10),
        step("affine", "scale", "part", bias=True),
        step("softmax", "soft", "scale"),
        linear("again", "input", 5, weights="blocks.0.fc"),
    ],
    "outputs": [{"name": "pi", "value": "soft"}, {"name": "v", "value": "again"}],
    "input_shape": [2, 3],
    "labels": list("abcdefgh"),
    "dtype": "float32",
}
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 12),
    st.sampled_from(
        [2**20, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, "", "x", "relu", "input", "act", "glu", "a\nb", "é"]
    ),
    st.sampled_from(
        ["linear", "norm", "concat", "slice", "softmax", "add", "float16", "layer", "l2", [], {}, [[]]]
    ),
    st.floats(),
    st.text(max_size=12),
    st.lists(st.sampled_from(["input", "act", "sum", 1, None]), max_size=4),
).map(copy.deepcopy)  # what is drawn is mutated again


@st.composite
def mutated(draw):
    """The good file with one to three of its parts replaced, removed, repeated, swapped or added to."""
    content = {"format": "fused-mlp/2", "spec": copy.deepcopy(GOOD)}
    for _ in range(draw(st.integers(1, 3))):
        parent = content
        while True:
            keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(parent[key], (dict, list)) and parent[key] and draw(st.integers(0, 3)):
                parent = parent[key]
                continue
            match draw(st.sampled_from(["replace", "replace", "remove", "repeat", "swap", "add"])):
                case "remove":
                    del parent[key]
                case "repeat" if isinstance(parent, list):
                    parent.insert(key, copy.deepcopy(parent[key]))
                case "swap":
                    other = draw(st.sampled_from(keys))
                    parent[key], parent[other] = parent[other], parent[key]
                case "add" if isinstance(parent, dict):
                    parent[draw(st.text(max_size=8))] = draw(JUNK)
                case _:
                    parent[key] = draw(JUNK)
            break
    return content


@pytest.fixture(scope="module")
def good_files(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("good") / "1"
    models.save(random_weights(MlpSpec.model_validate(GOOD)), path)
    return path


@settings(max_examples=600, deadline=None)
@given(content=mutated())
def test_a_mutated_file_is_loaded_or_refused_in_one_line(good_files, content):
    (good_files / "model.json").write_text(json.dumps(content))
    try:
        mlp = models.load(good_files)
    except ModelLoadError as error:
        assert str(error).isprintable()
        assert str(good_files) in str(error)
    else:
        assert isinstance(mlp, Mlp)
        assert mlp.spec.summary().isprintable()
        y = evaluate(mlp, np.ones((2, mlp.spec.in_features), np.float32))
        assert y.shape == (2, mlp.spec.out_features)


@settings(max_examples=80, deadline=None)
@given(position=st.integers(0, 5000), junk=st.binary(min_size=1, max_size=6), cut=st.booleans())
def test_damaged_bytes_are_loaded_or_refused_in_one_line(tmp_path_factory, position, junk, cut):
    path = tmp_path_factory.mktemp("damaged") / "1"
    models.save(random_weights(MlpSpec.model_validate(GOOD)), path)
    for name in ("model.json", "model.safetensors"):
        file = path / name
        data = file.read_bytes()
        at = position % len(data)
        file.write_bytes(data[:at] + junk + (b"" if cut else data[at + len(junk) :]))
        try:
            models.load(path)
        except ModelLoadError as error:
            assert str(error).isprintable()
        file.write_bytes(data)
