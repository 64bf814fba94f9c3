# SPDX-License-Identifier: Apache-2.0
"""Files of torch.export.save that were made to run code, to read other files, or to use up memory. Each exploit is
built here from a file that torch wrote; none of them may leave a witness."""

import json
import math
import os
import pickle
import random
import re
import struct
import subprocess
import warnings
import zipfile

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from fused_mlp import models
from fused_mlp.models import ModelLoadError
from fused_mlp.models.importers.torch import bounds
from tests.models.importers.idioms import Plain

GRAPH = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


class Payload:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


class Archive:
    """The entries of a .pt2 file, to be changed and written again."""

    def __init__(self, path, module=None, width=20):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = export(
                (module or Plain()).eval(), (torch.zeros(3, width),), dynamic_shapes=({0: Dim("batch")},)
            )
            torch.export.save(program, path)
        with zipfile.ZipFile(path) as source:
            self.root = source.namelist()[0].partition("/")[0]
            self.entries = {name.partition("/")[2]: source.read(name) for name in source.namelist()}
        self.path = path

    def document(self, name):
        return json.loads(self.entries[name])

    def put(self, name, document):
        self.entries[name] = json.dumps(document).encode()

    def graph(self):
        document = self.document(GRAPH)
        return document, document["graph_module"]["graph"]

    def write(self, *more, compression=zipfile.ZIP_STORED):
        with warnings.catch_warnings(), zipfile.ZipFile(self.path, "w", compression) as target:
            warnings.simplefilter("ignore")  # duplicate names
            for name, content in (*self.entries.items(), *more):
                target.writestr(f"{self.root}/{name}", content)
        return self.path


@pytest.fixture
def archive(tmp_path):
    return Archive(tmp_path / "net.pt2")


@pytest.fixture
def witness(tmp_path):
    return tmp_path / "witness"


def refused(path):
    with pytest.raises(ModelLoadError) as caught:
        models.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_file_that_torch_wrote_is_read(archive):
    assert models.load(archive.write()).spec.summary() == "20-16-16-3 relu"


# Code that torch's own loader runs.


def test_a_pickle_in_a_sub_folder_is_not_loaded(archive, witness):
    name = "opaque_obj_0/x"
    archive.put(
        CONSTANTS,
        {
            "config": {
                "thing": {"path_name": name, "is_param": False, "use_pickle": True, "tensor_meta": None}
            }
        },
    )
    archive.entries[f"data/constants/{name}"] = pickle.dumps(Payload(witness))
    assert name in refused(archive.write())
    assert not witness.exists()


def test_compiled_code_in_the_archive_is_not_loaded(archive, witness, tmp_path):
    source, library = tmp_path / "evil.c", tmp_path / "evil.so"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void)"
        f' {{ FILE *file = fopen("{witness}", "w"); if (file) fclose(file); }}\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    archive.entries["data/aotinductor/model/evil.wrapper.so"] = library.read_bytes()
    archive.entries["data/aotinductor/model/evil.wrapper_metadata.json"] = b'{"AOTI_DEVICE_KEY": "cpu"}'
    assert "data/aotinductor/model/" in refused(archive.write())
    assert not witness.exists()


def test_expressions_of_a_graph_under_another_name_are_not_evaluated(archive, witness):
    text = archive.entries.pop(GRAPH).decode()
    code = f"__import__('pathlib').Path('{witness}').touch() or Symbol('s77', positive=True, integer=True)"
    archive.entries["models/model.JSON"] = text.replace(
        "Symbol('s77', positive=True, integer=True)", code
    ).encode()
    assert "models/model.JSON" in refused(archive.write())
    assert not witness.exists()


def test_pickles_in_place_of_tensors_and_sample_inputs_are_not_loaded(archive, witness):
    config = archive.document(WEIGHTS)
    for stored in config["config"].values():
        stored["use_pickle"] = True
    archive.put(WEIGHTS, config)
    payload = pickle.dumps(Payload(witness))
    archive.entries["data/weights/weight_0"] = payload
    archive.entries["data/sample_inputs/model.pt"] = payload
    assert "data/weights/weight_0" in refused(archive.write())
    assert not witness.exists()


# Operators.


def tensor(name):
    return {"as_tensor": {"name": name}}


def call(target, *arguments, made="made", **options):
    """A node of the graph."""
    inputs = [{"name": "", "arg": each, "kind": 1} for each in arguments]
    inputs += [{"name": name, "arg": each, "kind": 2} for name, each in options.items()]
    made = [tensor(made)] if isinstance(made, str) else made
    return {"target": target, "inputs": inputs, "outputs": made, "metadata": {}}


def with_nodes(archive, *nodes):
    """The archive with nodes in front of its own."""
    document, graph = archive.graph()
    graph["nodes"] = [*nodes, *graph["nodes"]]
    archive.put(GRAPH, document)
    return archive.write()


ROWS = {"as_sym_int": {"as_name": "n"}}
X = tensor("x")
BIG = {"as_int": 1 << 40}


def test_a_node_that_nothing_uses_is_harmless(archive):
    assert models.load(with_nodes(archive, call("torch.ops.aten.relu.default", X))).spec.in_features == 20


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.as_strided.default",
        "torch.ops.aten._reshape_alias.default",
        "torch.ops.aten.empty.memory_format",
        "torch.ops.aten.set_.source_Storage",
        "torch.ops.aten.add.out",
        "torch.ops.aten.mul.left_t",
        "torch.ops.aten.add.str",
        "torch.ops.aten.sort.any",
        "torch.ops.aten.to.prim_dtype",
        "torch.ops.aten.relu",
        "torch.ops.aten.relu.__class__",
        "torch.ops.load_library",
        "torch.ops.profiler._record_function_enter_new.default",
        "torch.hub.load",
        "torch.load",
        "_operator.attrgetter",
        "_operator.pow",
        "_operator.lshift",
        "math.factorial",
        "builtins.exec",
        "#extension",
    ],
)
def test_operators_that_are_not_listed_are_refused_by_name(archive, target, witness):
    text = refused(with_nodes(archive, call(target, {"as_string": str(witness)})))
    assert "is no step of an MLP" in text
    assert any(part.strip("_") in text for part in target.split(".")[-2:])
    assert not witness.exists()


@pytest.mark.parametrize(
    "nodes",
    [
        [call("torch.ops.aten.full.default", {"as_ints": [1 << 40]}, {"as_float": 1.0})],
        [call("torch.ops.aten.arange.default", BIG)],
        [call("torch.ops.aten.expand.default", X, {"as_ints": [1 << 20, 1 << 20, 20, 20]})],
        [call("torch.ops.aten.repeat.default", X, {"as_ints": [1, 1 << 40]})],
        [call("torch.ops.aten.tensor_split.sections", X, BIG, made=[{"as_tensors": [{"name": "part"}]}])],
        [
            call("torch.ops.aten.full.default", {"as_ints": []}, BIG, made="n", dtype={"as_scalar_type": 5}),
            call(
                "torch.ops.aten.tensor_split.tensor_indices_or_sections",
                X,
                tensor("n"),
                made=[{"as_tensors": [{"name": "part"}]}],
            ),
        ],
        # each of them small enough, and too many together
        [call("torch.ops.aten.ones.default", {"as_ints": [1 << 25]}, made=f"many{i}") for i in range(20)],
        # few values for many rows, many for one or two: 2**40 * (1 - n // 3) + 1
        [
            call("torch.ops.aten.sym_size.int", X, {"as_int": 0}, made=[{"as_sym_int": {"as_name": "n"}}]),
            call("_operator.floordiv", ROWS, {"as_int": 3}, made=[{"as_sym_int": {"as_name": "third"}}]),
            call(
                "torch.sym_min",
                {"as_sym_int": {"as_name": "third"}},
                {"as_int": 1},
                made=[{"as_sym_int": {"as_name": "flag"}}],
            ),
            call(
                "_operator.sub",
                {"as_int": 1},
                {"as_sym_int": {"as_name": "flag"}},
                made=[{"as_sym_int": {"as_name": "few"}}],
            ),
            call(
                "_operator.mul",
                BIG,
                {"as_sym_int": {"as_name": "few"}},
                made=[{"as_sym_int": {"as_name": "size"}}],
            ),
            call("torch.ops.aten.ones.default", {"as_sym_ints": [{"as_name": "size"}]}, made="ones"),
        ],
        # integers that double their length with each node
        [
            call(
                "_operator.mul",
                *[{"as_sym_int": {"as_name": f"i{i}"} if i else {"as_int": 3}}] * 2,
                made=[{"as_sym_int": {"as_name": f"i{i + 1}"}}],
            )
            for i in range(40)
        ],
    ],
    ids=["full", "arange", "expand", "repeat", "split", "split by a tensor", "total", "one row", "integers"],
)
def test_results_are_bounded_before_they_are_allocated(archive, nodes):
    assert re.search(r"expected at most|more than|2\*\*62", refused(with_nodes(archive, *nodes)))


@pytest.mark.parametrize(
    ("target", "given"),
    [
        ("_operator.mul", [{"as_string": "a"}, {"as_int": 1 << 40}]),
        ("_operator.mul", [{"as_ints": [1]}, {"as_int": 1 << 40}]),
        ("_operator.mod", [{"as_string": "%1000000000000d"}, {"as_int": 5}]),
        ("_operator.add", [X, {"as_int": 1}]),
    ],
)
def test_only_numbers_are_computed_with_as_sizes(archive, target, given):
    assert "expected numbers" in refused(with_nodes(archive, call(target, *given)))


@pytest.mark.parametrize("value", [{"as_int": 1000}, {"as_int": -5}, {"as_string": "float32"}, ROWS])
@pytest.mark.parametrize("option", ["dtype", "layout", "device"])
def test_numbers_are_no_dtypes(archive, option, value):
    """torch looks them up in a table, past whose end it goes."""
    rows = call("torch.ops.aten.sym_size.int", X, {"as_int": 0}, made=[{"as_sym_int": {"as_name": "n"}}])
    ones = call("torch.ops.aten.ones.default", {"as_ints": [3]}, made="ones", **{option: value})
    assert f"{option}: expected a " in refused(with_nodes(archive, rows, ones))


@pytest.mark.parametrize("counts", [[10_000_000, -9_999_999], [1 << 62, 1 << 62, 1 << 62, (1 << 62) + 1]])
def test_counts_do_not_write_past_the_end_of_their_result(archive, counts):
    """torch compares only their sum with the size of the result, and writes as many as the first one says."""
    int64 = {"as_scalar_type": 5}
    ends = [
        call("torch.ops.aten.full.default", {"as_ints": [1]}, {"as_int": n}, made=f"c{i}", dtype=int64)
        for i, n in enumerate(counts)
    ]
    parts = {"as_tensors": [{"name": f"c{i}"} for i in range(len(counts))]}
    together = call("torch.ops.aten.cat.default", parts, made="counts")
    repeat = call("torch.ops.aten.repeat_interleave.Tensor", tensor("counts"), output_size={"as_int": 1})
    assert "repeat_interleave: expected counts" in refused(with_nodes(archive, *ends, together, repeat))


def test_results_that_stay_alive_are_bounded_together(archive, monkeypatch):
    """Each is no larger than its argument, and the last node needs all of them."""
    monkeypatch.setattr(bounds, "_MAX_HELD", 1 << 20)
    many = [
        call("torch.ops.aten.mul.Scalar", tensor("ones"), {"as_float": 1.0 + i}, made=f"m{i}")
        for i in range(40)
    ]
    ones = call("torch.ops.aten.ones.default", {"as_ints": [1 << 14]}, made="ones")
    sums = [
        call("torch.ops.aten.add.Tensor", tensor(f"s{i}" if i else "ones"), tensor(f"m{i}"), made=f"s{i + 1}")
        for i in range(40)
    ]
    assert "are alive, too much for an MLP" in refused(with_nodes(archive, ones, *many, *sums))


def test_results_that_are_freed_count_no_more(monkeypatch):
    monkeypatch.setattr(bounds, "_MAX_HELD", 1 << 20)
    value = torch.ones(1 << 14)
    with bounds.bounded(), torch.no_grad():
        for _ in range(100):
            value = value * 1.0
        views = [value.view(1 << 7, 1 << 7).T for _ in range(100)]
    assert len(views) == 100


def test_statistics_that_are_too_short_are_not_read_past_their_end(archive):
    """The native batch norm of torch does not compare their width with that of the rows."""
    short = tensor("p_" + next(iter(archive.document(WEIGHTS)["config"])).replace(".", "_"))
    take = [
        call("torch.ops.aten.flatten.using_ints", short, made="flat"),
        call("torch.ops.aten.slice.Tensor", tensor("flat"), *({"as_int": i} for i in (0, 0, 1)), made="one"),
    ]
    norm = call(
        "torch.ops.aten._native_batch_norm_legit_no_training.default",
        X,
        *[tensor("one")] * 4,
        {"as_float": 0.1},
        {"as_float": 1e-5},
        made=[tensor("norm"), tensor("mean"), tensor("var")],
    )
    document, graph = archive.graph()
    graph["nodes"] = [*take, norm, *graph["nodes"]]
    for each in graph["nodes"][3]["inputs"]:
        if each["arg"] == X:
            each["arg"] = tensor("norm")
    archive.put(GRAPH, document)
    assert "running_mean" in refused(archive.write())


# Archives and tensors.


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "models/other.json",
        "data/weights/weight_0/x",
        "data/weights/../weights/weight_0",
        "data/constants/custom_obj_0",
        "data/aotinductor/",
        "data/weights/model.pt",
        "data/weights/weight_0\n",
    ],
)
def test_entries_of_other_names_are_refused_by_name(archive, name):
    archive.entries[name] = b"x"
    assert repr(name)[1:-1] in refused(archive.write())


def test_entries_that_are_doubled_packed_linked_or_elsewhere_are_refused(archive):
    assert "twice" in refused(archive.write(("data/weights/weight_0", b"0000")))
    assert "compressed" in refused(archive.write(compression=zipfile.ZIP_DEFLATED))
    link = zipfile.ZipInfo(f"{archive.root}/extra/link")
    link.external_attr = 0o120777 << 16
    for entry, text in ((link, "a link"), (zipfile.ZipInfo("/byteorder"), "'/byteorder'")):
        archive.write()
        with zipfile.ZipFile(archive.path, "a") as target:
            target.writestr(entry, b"/etc/passwd")
        assert text in refused(archive.path)


def test_entries_that_lie_about_their_size_are_refused(archive):
    path = archive.write()
    content = path.read_bytes()
    (start,) = struct.unpack_from("<I", content, content.rindex(b"PK\x05\x06") + 16)  # of the directory
    sizes = struct.pack("<II", 0x7FFFFFFF, 0x7FFFFFFF)
    path.write_bytes(content[: start + 20] + sizes + content[start + 28 :])
    assert "larger than the file" in refused(path)


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": [{"as_int": 1 << 40}, {"as_int": 20}]},
        {"sizes": [{"as_int": -16}, {"as_int": 20}]},
        {"sizes": [{"as_int": 16}, {"as_expr": {"expr_str": "20"}}]},
        {"strides": [{"as_int": 1 << 40}, {"as_int": 1}]},
        {"strides": [{"as_int": -20}, {"as_int": 1}]},
        {"strides": [{"as_int": 20}]},
        {"sizes": [{"as_int": 1 << 61}] * 20_000, "strides": [{"as_int": 0}] * 20_000},
        {"storage_offset": {"as_int": 1}},
        {"storage_offset": {"as_int": -1}},
        {"sizes": [{"as_int": 1 << 20}, {"as_int": 20}], "strides": [{"as_int": 0}, {"as_int": 1}]},
        {"dtype": 10},
        {"dtype": 8},
        {"dtype": "float"},
        {"layout": 1},
    ],
)
def test_tensors_that_do_not_fit_their_bytes_are_refused(archive, change):
    config = archive.document(WEIGHTS)
    name = next(name for name, stored in config["config"].items() if len(stored["tensor_meta"]["sizes"]) == 2)
    config["config"][name]["tensor_meta"].update(change)
    archive.put(WEIGHTS, config)
    refused(archive.write())


def test_tensors_that_share_their_bytes_are_not_larger_than_the_file_together(archive):
    config = archive.document(WEIGHTS)
    stored = next(stored for stored in config["config"].values())
    for offset in range(16):
        meta = stored["tensor_meta"] | {
            "sizes": [{"as_int": 1 << 20}],
            "strides": [{"as_int": 0}],
            "storage_offset": {"as_int": offset % 4},
        }
        config["config"][f"extra{offset}"] = stored | {"tensor_meta": meta | {"device": {"index": offset}}}
    archive.put(WEIGHTS, config)
    assert "larger than the file" in refused(archive.write())


@pytest.mark.parametrize(
    "name", ["forward", "__class__", "_parameters.x", "a." * 5000 + "b", "", ".", "training"]
)
def test_names_of_tensors_are_only_names(archive, name):
    config = archive.document(WEIGHTS)
    old = next(iter(config["config"]))
    config["config"][name] = config["config"].pop(old)
    archive.put(WEIGHTS, config)
    archive.entries[GRAPH] = archive.entries[GRAPH].replace(
        json.dumps(old).encode(), json.dumps(name).encode()
    )
    refused(archive.write())


def test_documents_that_are_deep_long_or_no_graph_are_refused(archive):
    graph = archive.entries[GRAPH]
    for content in (
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b"1" * 5000,
        graph[:-1],
    ):
        archive.entries[GRAPH] = content
        refused(archive.write())
    archive.entries[GRAPH] = graph
    nodes = [call("torch.ops.aten.relu.default", X, made=f"made{i}") for i in range(20_001)]
    assert "more than 20000 nodes" in refused(with_nodes(archive, *nodes))


# Anything else.


def mutate(document, generator):
    """Changes one leaf or one branch, somewhere."""
    path, node = [], document
    while isinstance(node, (dict, list)) and node and (not path or generator.random() < 0.9):
        key = generator.choice(list(node) if isinstance(node, dict) else range(len(node)))
        path.append((node, key))
        node = node[key]
    if not path:
        return
    parent, key = generator.choice(path[-2:])
    other = generator.choice(
        [
            None,
            -1,
            0,
            1,
            7,
            1 << 33,
            1 << 70,
            1.5,
            math.nan,
            "",
            "x",
            "Infinity",
            [],
            {},
            [[]],
            True,
            "as_int",
            node,
        ]
    )
    if generator.random() < 0.2 and isinstance(parent, dict):
        parent[str(other)[:20]] = parent.pop(key)
    elif generator.random() < 0.2:
        del parent[key]
    else:
        parent[key] = other


@pytest.mark.parametrize("seed", range(4))
def test_any_change_of_a_file_gives_a_model_or_one_line(tmp_path, seed):
    module = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2))
    archive = Archive(tmp_path / "net.pt2", module, width=6)
    original = dict(archive.entries)
    generator = random.Random(seed)
    for _ in range(25):
        archive.entries = dict(original)
        name = generator.choice([GRAPH, GRAPH, WEIGHTS, "data/weights/weight_0"])
        if name.endswith(".json"):
            document = archive.document(name)
            for _ in range(generator.choice((1, 1, 3))):
                mutate(document, generator)
            archive.put(name, document)
        else:
            archive.entries[name] = generator.randbytes(generator.choice((0, 3, 96, 200)))
        try:
            assert models.load(archive.write()).spec.in_features
        except ModelLoadError as error:
            assert "\n" not in str(error)
