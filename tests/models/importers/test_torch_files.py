# SPDX-License-Identifier: Apache-2.0
"""Torch models in files: .pt2, TorchScript, pickled modules, and Python code that makes a module."""

import io
import pickle
import warnings
import zipfile

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from fused_mlp import models
from fused_mlp.models import ModelLoadError
from fused_mlp.models.importers.importer import detect_format, import_model
from tests.models.importers.idioms import ActorCritic, Plain, PreNormTower


@pytest.fixture(autouse=True)
def _torch_warns():
    """Of its own doing, when it saves what tests import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def add(tmp_path):
    return lambda source, **options: import_model(source, tmp_path / "repository", "net", **options)


def save_pt2(module, width, path, **options):
    torch.export.save(export(module.eval(), (torch.zeros(3, width),), **options), path)
    return path


def test_exported_programs_are_loaded_whatever_number_of_rows_they_were_made_for(tmp_path):
    fixed = save_pt2(PreNormTower(), 10, tmp_path / "fixed.pt2")
    assert models.load(fixed).spec.summary() == "10 -> 8 -> 3 x [ln, 12 gelu, 8, +] -> ln -> 5"
    free = save_pt2(ActorCritic(), 8, tmp_path / "free.pt2", dynamic_shapes=({0: Dim("batch")},))
    mlp = models.load(free)
    assert [output.name for output in mlp.spec.outputs] == ["pi", "v"]
    assert "body.0.weight" in mlp.tensors()


class Payload:
    """Code that a pickle runs when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("member", ["sample_inputs/model.pt", "weights/weight_0"])
def test_code_in_a_pt2_file_is_not_run(tmp_path, member):
    good, bad, witness = (
        save_pt2(Plain(), 20, tmp_path / "good.pt2"),
        tmp_path / "bad.pt2",
        tmp_path / "witness",
    )
    payload = io.BytesIO()
    torch.save({"x": Payload(witness)}, payload)
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(bad, "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename.endswith(member):
                content = payload.getvalue()
            if entry.filename.endswith("weights_config.json"):
                content = content.replace(b'"use_pickle": false', b'"use_pickle": true')
                content = content.replace(b'"use_pickle":false', b'"use_pickle":true')
            target.writestr(entry.filename.replace("good/", "bad/"), content)
    with pytest.raises(ModelLoadError, match=r"bad.pt2: "):
        models.load(bad)
    assert not witness.exists()


def test_expressions_in_a_pt2_file_are_not_evaluated(tmp_path):
    good = save_pt2(Plain(), 20, tmp_path / "good.pt2", dynamic_shapes=({0: Dim("batch")},))
    bad, witness = tmp_path / "bad.pt2", tmp_path / "witness"
    code = f"__import__('pathlib').Path('{witness}').touch() or Symbol('s".encode()
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(bad, "w") as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry).replace(b"Symbol('s", code))
    assert models.load(bad).spec.in_features == 20  # sizes come from the graph, not from texts
    assert not witness.exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no archive"])
def test_damaged_pt2_files_are_refused_in_one_line(tmp_path, content):
    (tmp_path / "net.pt2").write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"net.pt2: not a") as caught:
        models.load(tmp_path / "net.pt2")
    assert "\n" not in str(caught.value)


def test_torchscript_is_told_from_a_state_dict_and_read(tmp_path, add):
    torch.jit.script(Plain()).save(tmp_path / "scripted.pt")
    torch.jit.trace(PreNormTower().eval(), torch.zeros(2, 10)).save(tmp_path / "traced.pt")
    torch.save(Plain().state_dict(), tmp_path / "weights.pt")
    assert detect_format(tmp_path / "weights.pt") == "state_dict"
    assert detect_format(tmp_path / "scripted.pt") == "torchscript"
    trusted = add(tmp_path / "scripted.pt", unsafe_torchscript=True)
    assert trusted.mlp.spec.summary() == "20-16-16-3 relu"
    assert add(tmp_path / "traced.pt", unsafe_torchscript=True).version == 2


class Overwriting(nn.Module):
    """Writes to a file of its author's choice, each time that it runs."""

    def __init__(self, path):
        super().__init__()
        self.path = str(path)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x) + torch.from_file(self.path, shared=True, size=4).fill_(0.0).sum()


def test_torchscript_is_neither_loaded_nor_run_unless_that_is_asked_for(tmp_path, add):
    witness = tmp_path / "witness"
    witness.write_bytes(b"important")
    torch.jit.script(Overwriting(witness)).save(tmp_path / "net.pt")
    with pytest.raises(
        ModelLoadError, match=r"net.pt: .*torch\.export\.save.*unsafe_torchscript=True"
    ) as caught:
        add(tmp_path / "net.pt")
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelLoadError):
        add(tmp_path / "net.pt", activation="relu")
    # By either of the marks that torch and its tools know it by.
    with zipfile.ZipFile(tmp_path / "net.pt") as source, zipfile.ZipFile(tmp_path / "bare.pt", "w") as target:
        for name in source.namelist():
            if "/code/" not in name:
                target.writestr(name, source.read(name))
    with pytest.raises(ModelLoadError, match="unsafe_torchscript=True"):
        add(tmp_path / "bare.pt", activation="relu")
    assert witness.read_bytes() == b"important"


def test_a_pickled_module_is_loaded_only_when_that_is_asked_for(tmp_path, add):
    torch.save(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), tmp_path / "whole.pt")
    with pytest.raises(ModelLoadError, match="unsafe_pickle=True"):
        add(tmp_path / "whole.pt")
    imported = add(tmp_path / "whole.pt", unsafe_pickle=True)
    assert (imported.format, imported.mlp.spec.summary()) == ("pickle", "3-2 tanh")
    (tmp_path / "other.pt").write_bytes(pickle.dumps([1]))
    with pytest.raises(ModelLoadError, match=r"other.pt: "):
        add(tmp_path / "other.pt", unsafe_pickle=True)


CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.fc = nn.Linear(width, 2)

    def forward(self, x):
        return self.fc(x.flatten(1))

def broken():
    raise ValueError("no config here")

number = 3
ready = Net(4)
"""


@pytest.fixture
def code(tmp_path):
    (tmp_path / "netcode.py").write_text(CODE)
    return f"{tmp_path}/netcode.py"


def test_python_code_makes_the_module_and_weights_are_loaded_into_it(tmp_path, add, code):
    weights = {"fc.weight": torch.ones(2, 6), "fc.bias": torch.zeros(2)}
    torch.save(
        {"state_dict": {f"module.{name}": tensor for name, tensor in weights.items()}}, tmp_path / "w.pt"
    )
    imported = add(f"{code}:Net", state_dict=tmp_path / "w.pt", row_shape=(2, 3))
    assert imported.format == "python"
    assert imported.mlp.spec.input_shape == (2, 3)
    assert (imported.mlp.tensors()["fc.weight"] == 1).all()
    assert add(f"{code}:ready").mlp.spec.in_features == 4


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("Nope", {}, "there is no 'Nope'"),
        ("number", {}, "expected a callable or a module, got int"),
        ("broken", {}, r"ValueError: no config here \(netcode.py:14"),
        ("Net.__name__", {}, "expected a callable"),
        ("Net", {"activation": "relu"}, r"activation=\.\.\.: of no use here"),
        ("Net", {"state_dict": "missing.pt"}, "missing.pt: no such file"),
    ],
)
def test_code_that_makes_no_module_is_refused_in_one_line(add, code, name, options, text):
    with pytest.raises(ModelLoadError, match=text) as caught:
        add(f"{code}:{name}", **options)
    assert "\n" not in str(caught.value)


def test_weights_of_another_module_are_refused_by_name(tmp_path, add, code):
    torch.save({"fc.weight": torch.ones(2, 6)}, tmp_path / "w.pt")
    with pytest.raises(ModelLoadError, match=r"w.pt has no 'fc.bias'"):
        add(f"{code}:Net", state_dict=tmp_path / "w.pt")
    with pytest.raises(ModelLoadError, match=r"model\.py:factory"):
        add(tmp_path / "w.pt", state_dict=tmp_path / "w.pt")
