# SPDX-License-Identifier: Apache-2.0
"""Refusals say the line, why, and what to do, in words of Python; the command makes options of them."""

import sys
import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import nn

from fused_mlp import models
from fused_mlp.models import ModelLoadError
from fused_mlp.models.importers.importer import import_model
from tests.models.importers.idioms import Plain


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x)[0].flatten(1)


def written(forward):
    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 8)
            self.table = nn.Embedding(10, 8)
            self.register_buffer("mask", torch.tensor([0.0] * 7 + [-torch.inf]))

    Written.forward = forward
    return Written()


@pytest.mark.parametrize(
    ("module", "example", "text"),
    [
        (Attention(), torch.zeros(1, 3, 8), "attention is no step.*import the feed-forward block alone"),
        (written(lambda self, x: self.fc(x) @ self.fc(x).T), None, "import the feed-forward block alone"),
        (written(lambda self, x: torch.cdist(self.fc(x), self.table.weight)), None, "cdist.*write it out"),
        (written(lambda self, x: self.table(x[:, 0].long())), torch.full((1, 4), 10.0), "category ids"),
        (
            written(lambda self, x: self.table(self.fc(x).long())),
            torch.zeros(1, 4),
            "a cast of computed floats",
        ),
        (written(lambda self, x: self.fc(x) + self.mask), None, "Written: add: .*a mask of -inf"),
        (
            written(lambda self, x: torch.distributions.Normal(self.fc(x), 1.0)),
            None,
            r"distributions\.Normal",
        ),
        (nn.GRUCell(4, 8), None, "a recurrent layer is no step"),
        (nn.LSTMCell(4, 8), None, "a recurrent layer is no step"),
        (nn.RNNCell(4, 8), None, "a recurrent layer is no step"),
        (written(lambda self, x: self.fc(x).half().to(x.dtype)), None, "Written: to: it rounds to float16"),
        (
            written(lambda self, x: self.fc(x) * torch.arange(x.shape[0])[:, None]),
            None,
            "Written: arange: it numbers the rows",
        ),
    ],
)
def test_the_line_the_reason_and_what_to_do(module, example, text):
    with pytest.raises(ModelLoadError, match=text) as caught:
        models.from_torch(module, example)
    assert "please report" not in str(caught.value)


@pytest.fixture
def add(tmp_path):
    return lambda source, **options: import_model(source, tmp_path / "repository", "net", **options)


def test_imports_of_files_ask_for_their_own_options(tmp_path, add):
    (tmp_path / "thin.py").write_text("from torch import nn\n\ndef make():\n    return nn.ReLU()\n")
    with pytest.raises(ModelLoadError, match=r"row_shape=\(784,\)"):
        add(f"{tmp_path}/thin.py:make")
    torch.save(Plain().state_dict(), tmp_path / "w.pt")
    with pytest.raises(ModelLoadError, match=r"activation='relu'.*model.py:factory with state_dict='w\.pt'"):
        add(tmp_path / "w.pt")
    torch.save({"norm.weight": torch.ones(3)}, tmp_path / "norm.pt")
    with pytest.raises(ModelLoadError, match="linear layers and batch norms are read; import the module"):
        add(tmp_path / "norm.pt", activation="relu")


def test_names_with_the_prefix_of_a_trainer_are_loaded(tmp_path, add):
    (tmp_path / "plain.py").write_text("from tests.models.importers.idioms import Plain\n")
    state = Plain().state_dict()
    torch.save(
        {"state_dict": {f"net.model.{name}": tensor for name, tensor in state.items()}}, tmp_path / "l.ckpt"
    )
    imported = add(f"{tmp_path}/plain.py:Plain", state_dict=tmp_path / "l.ckpt")
    ours = imported.mlp.tensors()
    assert all((ours[name] == tensor.numpy()).all() for name, tensor in state.items())


def test_a_pickled_module_finds_its_class_in_the_working_directory(tmp_path, add, monkeypatch):
    (tmp_path / "beside_the_pickle.py").write_text(
        "from torch import nn\n\nclass Net(nn.Sequential):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import beside_the_pickle

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(beside_the_pickle.Net(nn.Linear(3, 2)), tmp_path / "whole.pt")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "beside_the_pickle")
    monkeypatch.setattr("sys.path", [p for p in sys.path if p != str(tmp_path)])
    assert add(tmp_path / "whole.pt", unsafe_pickle=True).mlp.spec.summary() == "3-2"


def test_the_first_row_of_the_example_is_kept():
    example = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    assert models.from_torch(module, example).example == tuple(range(12))
    assert models.from_torch(module).example is None


def test_the_example_may_be_given_as_torch_export_takes_it():
    module = nn.Sequential(nn.Linear(7, 2), nn.ReLU())
    assert models.from_torch(module, (torch.zeros(2, 7),)).spec.in_features == 7
    assert models.from_torch(module.bfloat16(), torch.zeros(1, 7).bfloat16()).spec.in_features == 7
    assert models.from_torch(module, torch.zeros(0, 7)).example is None
    with pytest.raises(ModelLoadError, match=r"example: Sequential.forward takes 1 inputs \(input\), got 2"):
        models.from_torch(module, (torch.zeros(1, 7), torch.zeros(1, 7)))


def test_a_module_that_takes_rows_of_several_widths_asks_for_one():
    class Set(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.phi, self.rho = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.rho(F.relu(self.phi(x.unflatten(1, (-1, 4)))).mean(1))

    with pytest.raises(ModelLoadError, match="Set takes rows of 4 features and of 8: give"):
        models.from_torch(Set())
    assert models.from_torch(Set(), in_features=12).spec.in_features == 12
