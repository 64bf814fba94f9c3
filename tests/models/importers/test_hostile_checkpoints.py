# SPDX-License-Identifier: Apache-2.0
"""Files of tensors (.pt, .safetensors) that claim more memory than they hold, or do not fit together."""

import contextlib
import json
import pickle
import random
import struct
import subprocess
import sys
import time
import zipfile
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from fused_mlp import models
from fused_mlp.models import ModelLoadError
from fused_mlp.models.importers.checkpoints.state_dicts import read_state_dict

BIG = 1 << 40
WEIGHT = {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}


def refused(read, path):
    with pytest.raises(ModelLoadError) as caught:
        read(path, activation="relu")
    assert "\n" not in str(caught.value)
    return str(caught.value)


# safetensors.


@pytest.fixture
def write(tmp_path):
    def write(header, data=bytes(48), length=None):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        path = tmp_path / "net.safetensors"
        path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
        return path

    return write


def test_a_good_file_is_read(write):
    assert models.from_safetensors(write({"0.weight": WEIGHT}), activation="relu").spec.in_features == 4


@pytest.mark.parametrize("length", [0, 1 << 16, 1 << 32, 1 << 63, (1 << 64) - 1])
def test_headers_of_other_lengths_are_refused(write, length):
    refused(models.from_safetensors, write({"0.weight": WEIGHT}, length=length))


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [BIG, 4]},
        {"shape": [1 << 32, 1 << 32]},
        {"shape": [-3, -4]},
        {"shape": [3.0, 4]},
        {"shape": [1] * 70 + [3, 4]},
        {"shape": [0, 1 << 60], "data_offsets": [0, 0]},
        {"shape": [0, 1 << 63], "data_offsets": [0, 0]},
        {"data_offsets": [-48, 0]},
        {"data_offsets": [48, 0]},
        {"data_offsets": [48, 96]},
        {"data_offsets": [0, BIG]},
        {"dtype": "F128"},
    ],
)
def test_tensors_that_do_not_fit_their_bytes_are_refused(write, change):
    data = bytes(48 if "data_offsets" not in change or change["data_offsets"] != [0, 0] else 0)
    refused(models.from_safetensors, write({"0.weight": WEIGHT | change}, data))


def test_tensors_that_overlap_or_leave_gaps_are_refused(write):
    bias = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}
    refused(models.from_safetensors, write({"0.weight": WEIGHT, "0.bias": bias}))
    apart = bias | {"data_offsets": [52, 64]}
    refused(models.from_safetensors, write({"0.weight": WEIGHT, "0.bias": apart}, bytes(64)))


@pytest.mark.parametrize(
    "header",
    [
        b'{"__metadata__":' + b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"0.weight": {"dtype": "F32", "shape": [3, NaN], "data_offsets": [0, 48]}}',
        b'{"\\ud800.weight": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}',
        f'{{"0.weight": {json.dumps(WEIGHT)}, "0.weight": {json.dumps(WEIGHT | {"shape": [9, 4]})}}}'.encode(),
        b"\xff",
    ],
)  # fmt: skip
def test_headers_that_are_no_map_of_tensors_are_refused(write, header):
    refused(models.from_safetensors, write(header))


def test_an_index_that_is_deep_or_names_other_folders_is_refused(tmp_path):
    path = tmp_path / "net.safetensors.index.json"
    shards = (
        "../net.safetensors",
        r"\ud800.safetensors",
        r"a\u0000.safetensors",
    )  # half a character is no file name
    maps = [f'{{"weight_map": {{"0.weight": "{shard}"}}}}' for shard in shards]
    for text in ('{"weight_map":' + "[" * 100_000, *maps, "7"):
        path.write_text(text)
        refused(models.from_safetensors, path)


def test_names_with_very_long_numbers_are_only_names(write):
    names = {"9" * 5000 + ".weight": WEIGHT}
    assert models.from_safetensors(write(names), activation="relu").spec.out_features == 3


# state_dicts.


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "net.pt"
    torch.save(nn.Linear(4, 3).state_dict(), path)
    return path


def rewritten(path, pickled=None, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path) as source:
        entries = {name: source.read(name) for name in source.namelist()}
    with zipfile.ZipFile(path, "w", compression) as target:
        for name, content in entries.items():
            target.writestr(name, pickled if pickled and name.endswith("/data.pkl") else content)
    return path


@pytest.mark.parametrize(
    "tensors",
    [
        {"0.weight": torch.zeros(1).expand(1 << 18, 1 << 18)},
        {"0.weight": torch.zeros(4, 1).expand(4, 1 << 24)},
        dict.fromkeys((f"{i}.weight" for i in range(400)), torch.ones(1 << 8, 1 << 9)),
    ],
    ids=["repeated", "broadcast", "shared"],
)
def test_tensors_larger_than_the_file_are_refused(tmp_path, tensors):
    torch.save(tensors, tmp_path / "net.pt")
    assert "larger than the file" in refused(models.from_state_dict, tmp_path / "net.pt")


def test_compressed_entries_are_not_unpacked(tmp_path):
    torch.save({"0.weight": torch.zeros(1 << 10, 1 << 10)}, tmp_path / "net.pt")
    path = rewritten(tmp_path / "net.pt", compression=zipfile.ZIP_DEFLATED)
    assert "is compressed or encrypted" in refused(models.from_state_dict, path)


BYTES_OF_NOTHING = b"\x80\x02cbuiltins\nbytearray\n(J\x00\x00\x00\x40tR."  # bytearray(1 << 30)


def test_a_compressed_entry_is_refused_however_large_the_file(good, tmp_path):
    path = rewritten(good, BYTES_OF_NOTHING + bytes(1000), zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("net/data/9", bytes(1 << 16), zipfile.ZIP_STORED)
    assert "is compressed or encrypted" in refused(models.from_state_dict, path)


def test_entries_that_overlap_are_refused(good):
    with zipfile.ZipFile(good) as source:
        place = {each.filename: each.header_offset for each in source.infolist()}
    data = bytearray(good.read_bytes())
    weight = next(name for name in place if name.endswith("/data/0"))
    at = data.rindex(weight.encode()) - 46  # its entry in the directory
    struct.pack_into("<II", data, at + 20, 1 << 16, 1 << 16)
    good.write_bytes(data)
    assert "larger than the file" in refused(models.from_state_dict, good)


TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
)
TENSOR += b"X\x03\x00\x00\x00cpuK\x0ctQK\x00%bccollections\nOrderedDict\n)RtR"
MATRIX = TENSOR % b"K\x03K\x04\x86K\x04K\x01\x86\x89"


def named(value, name=b"0.weight"):
    return b"\x80\x02}X" + struct.pack("<I", len(name)) + name + value + b"s."


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02cbuiltins\nbytearray\n(\x8a\x06\x00\x00\x00\x00\x00\x10tR.",  # bytearray(1 << 44)
        b"\x80\x02cos\nmkdir\n(X\x01\x00\x00\x00xtR.",
        named(b"cos\nmkdir\n(X\x01\x00\x00\x00xtR"),
        b"\x80\x02(X\x01\x00\x00\x00xios\nmkdir\n.",  # INST
        b"\x80\x02\x82\x01.",  # a class of copyreg's extensions
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        b"\x80\x02})" + b"\x85" * 1_000_000 + MATRIX + b"s.",  # a key whose hash is deep
        b"\x80\x02" + b"]" * 5_000_000 + b".",
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of 2**31 places
        b"\x80\x02}X\x08\x00\x00\x000.weightctorch\nTensor\n(\x8a\x05\x00\x00\x00\x00\x02tRs.",
        named(MATRIX + b"K\x00K\x01s"),  # sets an entry of a tensor
        named(TENSOR % b"K\x03K\x05\x86K\x05K\x01\x86\x89"),
        named(TENSOR % b"K\x03K\x04\x86J\xff\xff\xff\xffK\x01\x86\x89"),
        named(TENSOR % b"K\x03K\x04\x86G\x3f\xf0\x00\x00\x00\x00\x00\x00K\x01\x86\x89"),
        named(MATRIX.replace(b"X\x01\x00\x00\x000", b"X\x0b\x00\x00\x00../../x/y/z")),
        b"\x80\x02s.", b"\x80\x02R.", b"\x80\x02.", b"\x80\x02h\x07.", b"\x80\x02e.", b"\x80\x02Q.", b"\x00",
    ],
)  # fmt: skip
def test_pickles_that_call_or_claim_something_are_refused(good, tmp_path, pickled, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(models.from_state_dict, rewritten(good, pickled))
    assert not (tmp_path / "x").exists()


def doubled(times):
    """A tuple of two references to a tuple of two references ...: text and hash of it take 2**times steps."""
    return b")" + b"q\x00h\x00\x86" * times


def test_names_of_classes_are_texts(good):
    path = rewritten(good, b"\x80\x02" + doubled(26) + b"X\x01\x00\x00\x00x\x93.")
    assert "a class without a name" in refused(models.from_state_dict, path)


@pytest.mark.parametrize("key", [doubled(20), b")" + b"\x85" * 1_000_000], ids=["doubled", "deep"])
def test_keys_of_storages_are_texts(tmp_path, key):
    """The hash of a deep tuple ends the process."""
    head = [pickle.dumps(each, 2) for each in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {})]
    (tmp_path / "net.pt").write_bytes(b"".join(head) + b"\x80\x02]" + key + b"a." + bytes(64))
    assert "keys of its storages" in refused(models.from_state_dict, tmp_path / "net.pt")


def test_dimensions_are_counted_before_they_are_multiplied(good):
    sizes = b"(\x8a\x08" + b"\xff" * 7 + b"\x3f" + b"q\x01" + b"h\x01" * 200_000 + b"t"
    start = time.monotonic()
    refused(models.from_state_dict, rewritten(good, named(TENSOR % (sizes + sizes))))
    assert time.monotonic() - start < 3


def test_the_pickle_of_these_tests_is_one_of_a_tensor(good):
    assert models.from_state_dict(rewritten(good, named(MATRIX)), activation="relu").spec.in_features == 4


@pytest.mark.parametrize("seed", range(20))
def test_any_change_of_a_file_gives_a_model_or_one_line(tmp_path, seed):
    drawn = random.Random(seed)
    path = tmp_path / "net.pt"
    torch.save(nn.Linear(4, 3).state_dict(), path, _use_new_zipfile_serialization=seed % 2 == 0)
    whole = path.read_bytes()
    for _ in range(100):
        data = bytearray(whole)
        for _ in range(drawn.choice((1, 2, 8))):
            data[drawn.randrange(len(data))] = drawn.choice((0, 1, 0x7F, 0x80, 0xFF, drawn.randrange(256)))
        path.write_bytes(data if drawn.random() < 0.9 else data[: drawn.randrange(len(data))])
        with contextlib.suppress(ModelLoadError):
            models.from_state_dict(path, activation="relu")


def test_a_file_of_old_torch_is_read(tmp_path):
    state = nn.Linear(4, 3).state_dict()
    torch.save(state, tmp_path / "net.pt", _use_new_zipfile_serialization=False)
    mlp = models.from_state_dict(tmp_path / "net.pt", activation="relu")
    assert (mlp.tensors()["layers.0.weight"] == state["weight"].numpy()).all()


class Hyperparameters:
    """Of a script of the user's own: whatever reads the file cannot import it."""


def test_what_lies_beside_the_state_dict_of_a_trainer_does_not_matter(tmp_path):
    net = nn.Linear(4, 3)
    adam = torch.optim.Adam(net.parameters())
    net(torch.ones(2, 4)).sum().backward()
    adam.step()
    trainer = {"epoch": 3, "state_dict": net.state_dict(), "optimizer": adam.state_dict(),
               "options": Hyperparameters(), "seen": {(1, 2): Counter("ab")}, "sizes": torch.Size([3])}  # fmt: skip
    torch.save(trainer, tmp_path / "net.ckpt")
    mlp = models.from_state_dict(tmp_path / "net.ckpt", activation="relu")
    assert (mlp.tensors()["layers.0.weight"] == net.weight.detach().numpy()).all()


@pytest.mark.parametrize("old", [False, True], ids=["archive", "old"])
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.uint16]
)
def test_tensors_of_every_dtype_and_view_are_read(tmp_path, dtype, old):
    whole = torch.arange(24).reshape(4, 6).to(dtype)
    state = {
        "whole": whole,
        "part": whole[1:3, ::2],
        "turned": whole.T,
        "scalar": whole[0, 1],
        "none": whole[:0],
    }
    state["parameter"] = nn.Parameter(whole[2], requires_grad=False)
    torch.save(state, tmp_path / "net.pt", _use_new_zipfile_serialization=not old)
    read = read_state_dict(tmp_path / "net.pt")
    for name, tensor in state.items():
        assert read[name].dtype.name == str(dtype).removeprefix("torch.")
        assert (read[name].astype(np.float64) == tensor.detach().double().numpy()).all()


def test_torch_is_not_needed(good):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"from fused_mlp import models; print(models.from_state_dict({str(good)!r}, activation='relu').spec.summary())"
    )
    read = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert read.stdout == "4-3\n"


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "net.pt").touch()
    assert "not a readable state_dict file" in refused(models.from_state_dict, tmp_path / "net.pt")
