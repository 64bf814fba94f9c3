# SPDX-License-Identifier: Apache-2.0
"""Large tables are mapped or loaded, shared by kernels, never copied, and kept in fewer bits."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fused_mlp import kernels
from fused_mlp.models import Mlp, MlpSpec, load, save
from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.inputs import Field, Input, spread_ids
from fused_mlp.models.program.steps import Bag, Concat, Embedding, Linear, Slice
from fused_mlp.models.weights import tables
from fused_mlp.models.weights.precision import reduce_precision, to_precision
from fused_mlp.models.weights.quantization import Int8Matrix
from fused_mlp.models.weights.tables import OpenTables, identity_of, is_table, open_table


def ranker_spec(size: int, features: int = 16) -> MlpSpec:
    ids = Input(name="item", dtype="int64", fields=(Field(kind="id", size=size),))
    bag = Input(name="seen", dtype="int64", shape=(5,), ragged=True, fields=(Field(kind="id", size=size),))
    return MlpSpec(
        in_features=9,
        inputs=(ids, bag, Input(name="x", shape=(3,))),
        steps=(
            Slice(name="item_id", input="input", start=0, stop=1),
            Slice(name="seen_ids", input="input", start=1, stop=6),
            Slice(name="x", input="input", start=6, stop=9),
            Embedding(name="item", input="item_id", size=size, features=features),
            Bag(name="seen", input="seen_ids", size=size, features=features, weights="item", mode="mean"),
            Concat(name="all", inputs=("item", "seen", "x")),
            Linear(name="out", input="all", out_features=2),
        ),
    )


def ranker(size: int = 1000) -> Mlp:
    generator = np.random.default_rng(0)
    spec = ranker_spec(size)
    return Mlp(spec, {name: generator.standard_normal(shape, np.float32) for name, shape in spec.shapes()})


def records(mlp: Mlp, rows: int = 50) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal((rows, mlp.spec.in_features), np.float32)
    spread_ids(mlp.spec.record, x)
    return x


@pytest.fixture(params=["map", "load"])
def mode(request, monkeypatch):
    monkeypatch.setattr(tables, "_mode", request.param)
    monkeypatch.setattr("fused_mlp.models.weights.safetensors_file.MIN_BYTES", 1)
    return request.param


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_a_saved_table_is_opened_and_gives_the_same_bits(mode, precision, tmp_path):
    mlp = reduce_precision(ranker(), precision)
    save(mlp, tmp_path / "1")
    opened = load(tmp_path / "1")
    kept = opened.reduced.get("item.weight", opened.unreduced().get("item.weight"))
    values = kept.values if isinstance(kept, Int8Matrix) else kept
    assert is_table(values)
    assert not values.flags.writeable
    assert {"float32": "float32", "bfloat16": "bfloat16", "int8": "int8"}[precision] == values.dtype.name
    x = records(mlp)
    expected = kernels.compile(mlp, device="cpu", backend="cpu")(x)
    np.testing.assert_array_equal(kernels.compile(opened, device="cpu", backend="cpu")(x), expected)


def test_a_kernel_keeps_its_tables_alive(mode, tmp_path):
    save(ranker(), tmp_path / "1")
    kernel = kernels.compile(load(tmp_path / "1"), device="cpu", backend="cpu")
    capsule = kernel._compiled
    x = records(ranker())
    expected = kernel(x)
    del kernel
    gc.collect()
    y = np.empty_like(expected)
    capsule.run(x, y)
    np.testing.assert_array_equal(y, expected)


def test_tables_begin_at_cache_lines(tmp_path):
    save(ranker(), tmp_path / "1")
    opened = load(tmp_path / "1")
    path = tmp_path / "1" / "model.safetensors"
    header = int.from_bytes(path.read_bytes()[:8], "little")
    offset = json.loads(path.read_bytes()[8 : 8 + header])["item.weight"]["data_offsets"][0]
    assert (8 + header + offset) % 64 == 0
    np.testing.assert_array_equal(opened.tensors()["item.weight"], ranker().tensors()["item.weight"])
    for precision in ("float32", "bfloat16", "int8"):
        mlp = to_precision(ranker(), precision)
        matrix = mlp.reduced.get("item.weight", mlp.unreduced().get("item.weight"))
        values = getattr(matrix, "values", matrix)
        assert values.ctypes.data % 64 == 0, precision


def test_a_table_with_nan_is_refused_unless_it_is_mapped(tmp_path, monkeypatch):
    save(ranker(), tmp_path / "1")
    path = tmp_path / "1" / "model.safetensors"
    data = bytearray(path.read_bytes())
    header = int.from_bytes(data[:8], "little")
    data[8 + header : 12 + header] = np.float32(np.nan).tobytes()  # the table comes first
    path.write_bytes(data)
    with pytest.raises(ModelLoadError, match=r"'item.weight': 1 of 16000 values are NaN or infinite"):
        load(tmp_path / "1")
    monkeypatch.setattr("fused_mlp.models.weights.safetensors_file.MIN_BYTES", 1)
    assert np.isnan(load(tmp_path / "1").tensors()["item.weight"][0, 0])


@pytest.mark.parametrize(("precision", "most"), [("bfloat16", 0.01), ("int8", 0.03)])
def test_tables_in_fewer_bits_are_measured_and_close(precision, most):
    mlp = ranker()
    reduced = reduce_precision(mlp, precision)
    assert "item.weight" in reduced.reduced
    assert reduced.error is not None
    x = records(mlp)
    got = kernels.compile(reduced, device="cpu", backend="cpu")(x)
    exact = evaluate(mlp, x.astype(np.float64))
    assert np.abs(got - exact).max() < most * np.abs(exact).max()
    table = evaluate(reduced, x)  # what the table says, to the bit or nearly so
    np.testing.assert_allclose(got, table, atol=most * np.abs(exact).max())


_SERVE = """
import sys, time
start = time.perf_counter()
import numpy as np
from fused_mlp import kernels, load
mlp = load(sys.argv[1])
kernel = kernels.compile(mlp, device="cpu", backend="cpu")
x = np.zeros((4, mlp.spec.in_features), np.float32)
y = kernel(x)
most = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(time.perf_counter() - start, most)
"""


def test_a_table_of_20_gib_is_served_within_two_seconds_and_little_memory(tmp_path: Path):
    size = 20 * (1 << 30) // 64
    save(ranker(), tmp_path / "1")
    folder = tmp_path / "1"
    (folder / "model.safetensors.sha256").unlink()
    described = json.loads((folder / "model.json").read_text())
    described["spec"] = json.loads(ranker_spec(size).model_dump_json(exclude_defaults=True))
    (folder / "model.json").write_text(json.dumps(described))
    shapes = dict(ranker_spec(size).shapes())
    header, at = {}, 0
    for name, shape in shapes.items():
        count = 4 * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + count]}
        at += count
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)  # sparse: zeros that take no space
    done = subprocess.run(
        [sys.executable, "-c", _SERVE, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seconds, kib = done.stdout.split()
    assert float(kib) < 400 * 1024
    # The imports take most of it. Twice the target, for a machine that does other work meanwhile.
    assert float(seconds) < 4, done.stdout


def table_of(mlp: Mlp) -> np.ndarray:
    return mlp.tensors()["item.weight"]


def test_versions_with_the_same_table_share_its_memory(mode, tmp_path, monkeypatch):
    monkeypatch.setattr("fused_mlp.models.weights.safetensors_file.MIN_BYTES", 1)
    first, second, third = ranker(), ranker(), ranker()
    table_of(third)[500, 3] += 1
    second.tensors()["out.weight"][0, 0] += 1
    for number, mlp in enumerate((first, second, third), 1):
        save(mlp, tmp_path / "m" / str(number))
    opened = [load(tmp_path / "m" / str(number)) for number in (1, 2, 3, 1)]
    places = [table_of(each).ctypes.data for each in opened]
    assert places[0] == places[1] == places[3] != places[2]
    for given, read in zip((first, second, third, first), opened, strict=True):
        np.testing.assert_array_equal(table_of(given), table_of(read))
        np.testing.assert_array_equal(given.tensors()["out.weight"], read.tensors()["out.weight"])


def test_a_shared_table_is_known_again_after_the_first_version_has_gone(mode, tmp_path, monkeypatch):
    """A kernel on a GPU does not keep the memory: the version's files are read again later, and must be the same."""
    monkeypatch.setattr("fused_mlp.models.weights.safetensors_file.MIN_BYTES", 1)
    for number in (1, 2):
        save(ranker(), tmp_path / "m" / str(number))
    first, second = load(tmp_path / "m" / "1"), load(tmp_path / "m" / "2")
    before = identity_of(table_of(second))
    del first, second
    gc.collect()
    assert identity_of(table_of(load(tmp_path / "m" / "2"))) == before


def test_a_digest_is_not_believed_for_another_model(tmp_path, monkeypatch):
    """A file that claims the hash of a stranger's table gets its own values."""
    monkeypatch.setattr("fused_mlp.models.weights.safetensors_file.MIN_BYTES", 1)
    own = ranker()
    save(own, tmp_path / "owner" / "1")
    liar = ranker()
    liar.tensors()["item.weight"][:] = 0
    save(liar, tmp_path / "liar" / "1")
    owners, liars = (tmp_path / name / "1" / "model.safetensors" for name in ("owner", "liar"))

    def digest(path: Path) -> bytes:
        size = int.from_bytes(path.read_bytes()[:8], "little")
        header = json.loads(path.read_bytes()[8 : 8 + size])
        return header["__metadata__"]["sha256:item.weight"].encode()

    liars.write_bytes(liars.read_bytes().replace(digest(liars), digest(owners)))
    (tmp_path / "liar" / "1" / "model.safetensors.sha256").unlink()
    kept = load(tmp_path / "owner" / "1")
    assert not table_of(load(tmp_path / "liar" / "1")).any()
    assert table_of(kept).any()


def test_bytes_of_open_tables_are_counted_as_long_as_they_are_open(tmp_path, monkeypatch):
    monkeypatch.setattr("fused_mlp.models.weights.safetensors_file.MIN_BYTES", 1)
    save(ranker(), tmp_path / "1")
    mlp = load(tmp_path / "1")
    opened = OpenTables(mlp.tensors().values())
    size, resident = opened.size, opened.resident
    assert size == 1000 * 16 * 4
    assert 0 < resident <= size  # just written: in the page cache
    del mlp
    gc.collect()
    assert (opened.size, opened.resident) == (0, 0)


def test_pages_of_a_sparse_table_that_nothing_reads_are_not_resident(tmp_path):
    path = tmp_path / "table"
    with path.open("wb") as file:
        file.truncate(256 << 20)
    with path.open("rb", buffering=0) as file:
        table = open_table(file, 0, "float32", (1 << 22, 16))
    opened = OpenTables([table])
    assert (opened.size, opened.resident) == (256 << 20, 0)
    table[: 1 << 19].sum()  # reads an eighth
    assert opened.resident == pytest.approx(32 << 20, rel=0.1)
