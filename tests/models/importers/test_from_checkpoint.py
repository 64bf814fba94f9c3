# SPDX-License-Identifier: Apache-2.0
"""State dicts and safetensors checkpoints: names, orders, orientations, shards, and what is asked for."""

import json
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from fused_mlp import models
from fused_mlp.models import ModelLoadError


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def close(mlp: models.Mlp, expected: torch.Tensor, x: torch.Tensor) -> None:
    with torch.inference_mode():
        torch.testing.assert_close(mlp.to_torch()(x), expected)


def test_a_state_dict_file_of_a_sequential(tmp_path):
    module = nn.Sequential(
        nn.Linear(4, 5), nn.GELU(), nn.Dropout(), nn.Linear(5, 3, bias=False), nn.Softmax(-1)
    )
    torch.save(module.state_dict(), tmp_path / "m.pt")
    mlp = models.from_state_dict(tmp_path / "m.pt", activation="gelu", output_activation="softmax")
    x = torch.randn(6, 4)
    close(mlp, module.eval()(x), x)


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "model"])
def test_a_training_checkpoint_is_unwrapped(wrapper, tmp_path):
    module = nn.Sequential(nn.Linear(4, 2))
    torch.save({"epoch": 3, wrapper: module.state_dict()}, tmp_path / "m.ckpt")
    assert models.from_state_dict(tmp_path / "m.ckpt", activation="relu").spec.widths == (4, 2)


def test_layers_come_in_the_order_of_the_state_dict():
    module = nn.ModuleDict({"stem": nn.Linear(4, 4), "body": nn.Linear(4, 4), "a_head": nn.Linear(4, 4)})
    mlp = models.from_state_dict(module.state_dict(), activation="tanh")
    for layer, part in zip(mlp.layers, module.values(), strict=True):
        assert np.array_equal(layer.weight, part.weight.detach())


def test_our_own_module_with_gates_round_trips_through_its_state_dict():
    spec = models.MlpSpec(
        in_features=3,
        layers=(
            models.LayerSpec(out_features=4, gated=True, activation="silu"),
            models.LayerSpec(out_features=2, activation="silu"),
            models.LayerSpec(out_features=5, gated=True, activation="silu"),
        ),
    )
    weights = [
        models.LayerWeights(torch.randn(4, 3), torch.randn(4), torch.randn(4, 3), torch.randn(4)),
        models.LayerWeights(torch.randn(2, 4), torch.randn(2)),
        models.LayerWeights(torch.randn(5, 2), torch.randn(5), torch.randn(5, 2), torch.randn(5)),
    ]
    mlp = models.Mlp(spec, weights)
    again = models.from_state_dict(mlp.to_torch().state_dict(), activation="silu")
    assert again.spec == spec
    assert all(np.array_equal(array, again.tensors()[name]) for name, array in mlp.tensors().items())


@pytest.mark.parametrize(
    "modules",
    [
        [nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2), nn.BatchNorm1d(2)],
        [nn.BatchNorm1d(4), nn.Linear(4, 5), nn.ReLU(), nn.BatchNorm1d(5), nn.Linear(5, 2)],
    ],
)
def test_batch_norms_are_folded_where_their_numbers_say(modules, tmp_path):
    module = nn.Sequential(*modules)
    module(torch.randn(64, 4) * 3 + 1)  # gives the statistics something to be
    module.eval()
    x = torch.randn(6, 4)
    expected = module(x).detach()
    close(models.from_state_dict(module.state_dict(), activation="relu"), expected, x)
    save_file(module.state_dict(), tmp_path / "m.safetensors")
    close(models.from_safetensors(tmp_path / "m.safetensors", activation="relu"), expected, x)


def test_a_batch_norm_whose_place_cannot_be_told_is_refused():
    module = nn.ModuleDict({"fc1": nn.Linear(4, 5), "bn1": nn.BatchNorm1d(5), "fc2": nn.Linear(5, 2)})
    with pytest.raises(
        ModelLoadError, match="bn1: whether this batch norm comes before or after the activation"
    ):
        models.from_state_dict(module.state_dict(), activation="relu")


GATED = [
    ("gate_proj", "up_proj", "down_proj"),
    ("w1", "w3", "w2"),
    ("wi_0", "wi_1", "wo"),
    ("c_fc_0", "c_fc_1", "c_proj"),
]
PLAIN = [
    ("c_fc", "c_proj"),
    ("dense_h_to_4h", "dense_4h_to_h"),
    ("fc1", "fc2"),
    ("fc_in", "fc_out"),
    ("lin1", "lin2"),
    ("up_proj", "down_proj"),
    ("w1", "w2"),
    ("wi", "wo"),
]
PREFIX = "model.layers.3.mlp"


@pytest.mark.parametrize("names", GATED)
def test_gated_feed_forward_blocks_of_transformers(names, tmp_path):
    gate, up, down = torch.randn(6, 4), torch.randn(6, 4), torch.randn(4, 6)
    tensors = {
        f"{PREFIX}.{name}.weight": tensor for name, tensor in zip(names, (gate, up, down), strict=True)
    }
    # Others beside it that a prefix without its dot would take in.
    tensors |= {
        "model.layers.3.mlp_norm.weight": torch.ones(4),
        "model.layers.30.mlp.w1.weight": torch.ones(1, 1),
    }
    save_file(tensors, tmp_path / "m.safetensors")
    mlp = models.from_safetensors(tmp_path / "m.safetensors", prefix=PREFIX, activation="silu")
    x = torch.randn(5, 4)
    close(mlp, (functional.silu(x @ gate.T) * (x @ up.T)) @ down.T, x)
    assert mlp.spec.layers[0].gated


@pytest.mark.parametrize("names", PLAIN)
@pytest.mark.parametrize("transposed", [False, True])
def test_plain_feed_forward_blocks_are_read_whichever_way_they_are_stored(names, transposed, tmp_path):
    first, second = nn.Linear(4, 6), nn.Linear(6, 4)
    tensors = {}
    for name, linear in zip(names, (first, second), strict=True):
        weight = linear.weight.detach()
        tensors[f"h.0.mlp.{name}.weight"] = weight.T.contiguous() if transposed else weight
        tensors[f"h.0.mlp.{name}.bias"] = linear.bias.detach()
    save_file(tensors, tmp_path / "m.safetensors")
    mlp = models.from_safetensors(tmp_path / "m.safetensors", prefix="h.0.mlp.", activation="gelu_tanh")
    x = torch.randn(5, 4)
    close(mlp, second(functional.gelu(first(x), approximate="tanh")).detach(), x)


def test_a_square_conv1d_is_ambiguous_until_told(tmp_path):
    weight, bias = torch.randn(4, 4), torch.randn(4)
    tensors = {"mlp.c_fc.weight": weight, "mlp.c_fc.bias": bias, "mlp.c_proj.weight": weight.clone()}
    save_file(tensors, tmp_path / "m.safetensors")
    with pytest.raises(ModelLoadError, match=r"mlp.c_fc.*\(4, 4\).*transposed=False or transposed=True"):
        models.from_safetensors(tmp_path / "m.safetensors", prefix="mlp", activation="relu")
    for transposed in (False, True):
        mlp = models.from_safetensors(tmp_path / "m.safetensors", activation="relu", transposed=transposed)
        assert np.array_equal(mlp.layers[0].weight, weight.T if transposed else weight)


def test_gate_and_up_in_one_matrix(tmp_path):
    fused, down = torch.randn(12, 4), torch.randn(4, 6)
    save_file({"gate_up_proj.weight": fused, "down_proj.weight": down}, tmp_path / "m.safetensors")
    mlp = models.from_safetensors(tmp_path / "m.safetensors", activation="silu")
    x = torch.randn(5, 4)
    gate, up = (x @ fused.T).chunk(2, -1)
    close(mlp, (functional.silu(gate) * up) @ down.T, x)


def test_three_numbered_layers_that_are_no_gate_are_three_layers():
    tensors = {"w1.weight": torch.randn(5, 4), "w2.weight": torch.randn(6, 5), "w3.weight": torch.randn(2, 6)}
    assert models.from_state_dict(tensors, activation="relu").spec.widths == (4, 5, 6, 2)


def test_numbers_are_sorted_as_numbers(tmp_path):
    tensors = {f"net.{index}.weight": torch.full((3, 3), float(index)) for index in (10, 2, 0, 4, 6, 8)}
    save_file(tensors, tmp_path / "m.safetensors")
    mlp = models.from_safetensors(tmp_path / "m.safetensors", prefix="net", activation="relu")
    assert [layer.weight[0, 0].item() for layer in mlp.layers] == [0, 2, 4, 6, 8, 10]


def test_a_name_map_wins_over_every_convention(tmp_path):
    tensors = {
        "enc.gate_proj.weight": torch.randn(5, 4),
        "enc.up_proj.weight": torch.randn(5, 4),
        "enc.b": torch.randn(5),
        "enc.g": torch.randn(5),
        "out.weight": torch.randn(2, 5),
    }
    save_file(tensors, tmp_path / "m.safetensors")
    # Gate and up swapped on purpose.
    names = {
        "layers.0.weight": "enc.gate_proj.weight",
        "layers.0.gate_weight": "enc.up_proj.weight",
        "layers.0.bias": "enc.b",
        "layers.0.gate_bias": "enc.g",
        "layers.1.weight": "out.weight",
    }
    mlp = models.from_safetensors(tmp_path / "m.safetensors", name_map=names, activation="relu")
    assert dict.fromkeys(names, True) == {
        name: np.array_equal(array, tensors[names[name]]) for name, array in mlp.tensors().items()
    }
    for change, text in (
        ({"layer.0.weight": "out.weight"}, "'layer.0.weight' is not a name such as layers.0.weight"),
        ({"layers.1.bias": "nope"}, "there is no tensor 'nope'; it has enc.b, enc.g"),
        ({"layers.3.weight": "out.weight"}, "layers.2.weight is missing"),
        ({"layers.1.gate_bias": "enc.b"}, "layers.1.gate_weight is missing"),
    ):
        with pytest.raises(ModelLoadError, match=text):
            models.from_safetensors(tmp_path / "m.safetensors", name_map=names | change, activation="relu")
    with pytest.raises(ModelLoadError, match="not both"):
        models.from_safetensors(tmp_path / "m.safetensors", name_map=names, prefix="enc", activation="relu")


@pytest.fixture
def sharded(tmp_path):
    tensors = {"a.0.weight": torch.randn(5, 4), "a.1.weight": torch.randn(2, 5)}
    save_file({"a.0.weight": tensors["a.0.weight"]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"a.1.weight": tensors["a.1.weight"]}, tmp_path / "model-00002-of-00002.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        json.dumps(
            {
                "metadata": {"total_size": 1},
                "weight_map": {f"a.{i}.weight": f"model-0000{i + 1}-of-00002.safetensors" for i in range(2)},
            }
        )
    )
    return index


def test_shards_are_read_through_their_index(sharded):
    for path in (sharded, sharded.parent):
        assert models.from_safetensors(path, activation="relu").spec.widths == (4, 5, 2)


def test_damaged_shards_and_indexes_are_refused(sharded):
    shards = json.loads(sharded.read_text())["weight_map"]
    misplaced = {"a.2.weight": "model-00001-of-00002.safetensors"}
    for bad, text in (
        ("{", "not a safetensors index"),
        ("[]", "not a safetensors index"),
        (json.dumps({"weight_map": {"a.0.weight": "../../etc/passwd"}}), "not a plain file name"),
        (json.dumps({"weight_map": shards | {"a.1.weight": "gone.safetensors"}}), "not readable"),
        (json.dumps({"weight_map": shards | misplaced}), "tensor 'a.2.weight' is not readable"),
    ):
        sharded.write_text(bad)
        with pytest.raises(ModelLoadError, match=text):
            models.from_safetensors(sharded, activation="relu")


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({}, "there are no tensors"),
        ({"x.weight": torch.ones(2, 2, 2)}, r"x: expected a weight of two dimensions, got shape \(2, 2, 2\)"),
        ({"ln.weight": torch.ones(4)}, r"ln: expected a weight of two dimensions, got shape \(4,\)"),
        ({"x.bias": torch.ones(2)}, "x has a bias but no weight"),
        ({"x.weight": torch.ones(3, 2), "x.bias": torch.ones(5)}, "x: expected a bias of shape"),
        ({"x.qweight": torch.ones(2, 2)}, "'x.qweight' is not part of an MLP"),
        ({"x.weight": torch.ones(2, 2, dtype=torch.int8)}, "x: int8 weights are not served"),
        ({"x.weight": torch.ones(2, 2, dtype=torch.float64)}, "float64, which is not served"),
        ({"x.weight": torch.full((2, 2), torch.nan)}, "4 of 4 values are NaN"),
        ({"0.weight": torch.ones(2, 3), "1.weight": torch.ones(2, 3)}, "1: expected 3 features, got 2"),
        ({"in.weight": torch.ones(2, 2), "hidden.weight": torch.ones(2, 2)}, "order of hidden and in"),
        ({"fc1.weight": torch.ones(2, 2), "out.weight": torch.ones(2, 2)}, "order of fc1 and out"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tensors, text, tmp_path):
    save_file(tensors, tmp_path / "m.safetensors")
    with pytest.raises(ModelLoadError, match=text):
        models.from_safetensors(tmp_path / "m.safetensors", activation="relu")


def test_a_prefix_that_matches_nothing_shows_what_there_is(tmp_path):
    save_file({f"model.{i}.weight": torch.ones(1, 1) for i in range(9)}, tmp_path / "m.safetensors")
    with pytest.raises(
        ModelLoadError, match=r"no tensor starts with 'mlp.'; it has model.0.weight, .* and 5 more"
    ):
        models.from_safetensors(tmp_path / "m.safetensors", prefix="mlp", activation="relu")


class Evil:
    def __reduce__(self):
        return (exit, ())


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (lambda path: torch.save(nn.Linear(2, 2), path), "Python objects in it, which are not loaded"),
        (lambda path: path.write_bytes(pickle.dumps(Evil())), "Python objects in it, which are not loaded"),
        (lambda path: torch.save([1, 2], path), "expected a state_dict"),
        (lambda path: torch.save({"a": 1}, path), "expected a state_dict"),
        (lambda path: path.write_bytes(b""), "not a readable state_dict"),
        (lambda path: path.write_bytes(b"PK\x03\x04junk"), "not a readable state_dict"),
        (lambda path: path.write_text("hello"), "not a readable state_dict"),
        (lambda path: None, "no such file"),
    ],
)
def test_files_that_are_no_state_dict_are_refused_and_never_run(write, text, tmp_path):
    write(tmp_path / "m.pt")
    with pytest.raises(ModelLoadError, match=text) as caught:
        models.from_state_dict(tmp_path / "m.pt", activation="relu")
    assert "\n" not in str(caught.value)


def test_safetensors_paths_that_are_none_are_refused(tmp_path):
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    for path, text in (
        (tmp_path / "absent.safetensors", "no such file"),
        (tmp_path / "junk.safetensors", "not a readable safetensors file"),
    ):
        with pytest.raises(ModelLoadError, match=text):
            models.from_safetensors(path, activation="relu")
    save_file({"0.weight": torch.ones(1, 1)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelLoadError, match="expected one safetensors file or index in it, found junk"):
        models.from_safetensors(tmp_path, activation="relu")
