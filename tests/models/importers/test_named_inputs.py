# SPDX-License-Identifier: Apache-2.0
"""from_torch with several inputs, ids and tables: names, dtypes, rules at the door, and what is asked for in words."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import nn

from fused_mlp import kernels, models
from fused_mlp.models import ModelLoadError
from fused_mlp.models.importers.importer import import_model
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.inputs import Add, Clip, Divide, InputError, Modulo, Multiply, Replace
from fused_mlp.models.program.steps import Bag, Compare, Dot, Embedding, Linear


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item, self.out = nn.Embedding(50, 4), nn.Embedding(40, 4), nn.Linear(11, 1)

    def forward(self, user, item, x):
        return self.out(torch.cat([self.user(user), self.item(item), x], 1)).squeeze(1)


class OfDict(Ranker):
    def forward(self, batch):
        return super().forward(batch["user"], batch["item"], batch["x"])


class OfKeywords(Ranker):
    def forward(self, **batch):
        return super().forward(**batch)


class Batch(NamedTuple):
    user: torch.Tensor
    item: torch.Tensor
    x: torch.Tensor


class OfNamedTuple(Ranker):
    def forward(self, batch):
        return super().forward(*batch)


EXAMPLE = {"user": torch.tensor([3, 7]), "item": torch.tensor([0, 39]), "x": torch.randn(2, 3)}


def written(forward, **parts):
    """A module with this forward, and a table of 10 rows."""

    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.fc = nn.Embedding(10, 3), nn.Linear(3, 2)
            for name, part in parts.items():
                setattr(self, name, part)

    Written.forward = forward
    torch.manual_seed(0)
    return Written()


def answers(mlp, *given):
    record = np.concatenate(
        [each.pack(np.asarray(values)) for each, values in zip(mlp.spec.inputs, given, strict=True)], axis=1
    )
    return evaluate(mlp, record.astype(np.float64))


def assert_same(module, mlp, *given):
    with torch.inference_mode():
        expected, again = (each(*given).flatten(1).numpy() for each in (module, mlp.to_torch()))
    got = answers(mlp, *(each.numpy() for each in given))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "example"),
    [
        (Ranker(), tuple(EXAMPLE.values())),
        (Ranker(), EXAMPLE),
        (OfDict(), EXAMPLE),
        (OfKeywords(), EXAMPLE),
        (OfNamedTuple(), (Batch(**EXAMPLE),)),
    ],
    ids=["positional", "named", "one dict", "keywords", "named tuple"],
)
def test_inputs_are_named_after_forward_or_the_keys(module, example):
    mlp = models.from_torch(module, example=example)
    shown = [(each.name, each.dtype, each.shape) for each in mlp.spec.inputs]
    assert shown == [("user", "int64", ()), ("item", "int64", ()), ("x", "float32", (3,))]
    assert mlp.spec.outputs[0].squeeze
    assert mlp.example is not None
    expected = Ranker.forward(module, **EXAMPLE)
    got = answers(mlp, *(each.numpy() for each in EXAMPLE.values()))[:, 0]
    np.testing.assert_allclose(got, expected.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_an_id_beyond_the_table_is_refused_at_the_door():
    mlp = models.from_torch(Ranker(), example=EXAMPLE)
    with pytest.raises(InputError, match="input 'item', row 0: expected an id from 0 to 39, got 40"):
        mlp.spec.inputs[1].pack(np.array([40]))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            Ranker(),
            r"Ranker.forward takes 3 inputs \(user, item, x\): give an example of each, example=\{'user': user",
        ),
        (OfDict(), r"takes a dict: give an example of it, example=\{'user': user"),
        (nn.Sequential(nn.Embedding(3, 2)), r"looks up rows of tables \(0\): give an example, example=input"),
    ],
)
def test_without_an_example_the_text_says_what_one_looks_like(module, text):
    with pytest.raises(ModelLoadError, match=text):
        models.from_torch(module)


def test_a_dict_of_floats_is_not_told_about_ids():
    class Floats(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(5, 1)

        def forward(self, batch):
            return self.out(torch.cat([batch["a"], batch["b"]], 1))

    with pytest.raises(ModelLoadError, match="takes a dict") as caught:
        models.from_torch(Floats())
    assert "category" not in str(caught.value)
    mlp = models.from_torch(Floats(), example={"a": torch.zeros(1, 2), "b": torch.zeros(1, 3)})
    assert mlp.spec.summary() == "5-1"


def test_a_dict_that_is_read_by_its_keys_is_asked_for():
    module = written(
        lambda self, batch: self.one(torch.cat([batch[key] for key in ("a", "b")], 1)), one=nn.Linear(5, 1)
    )
    with pytest.raises(ModelLoadError, match=r"takes a dict: give an example of it, example=\{'user': user"):
        models.from_torch(module)


def test_a_list_of_tensors_is_an_argument():
    module = written(lambda self, parts: self.one(torch.cat(parts, 1)), one=nn.Linear(5, 1))
    mlp = models.from_torch(module, example=([torch.zeros(1, 2), torch.zeros(1, 3)],))
    assert [each.name for each in mlp.spec.inputs] == ["parts_0", "parts_1"]


@pytest.mark.parametrize(
    ("example", "text"),
    [
        ((torch.tensor([1]), torch.tensor([1])), "missing 1 required positional argument: 'x'"),
        ((torch.tensor([1]), torch.tensor([1]), torch.zeros(2, 3)), r"the same rows in each.*x \(2, 3\)"),
        ((torch.tensor([50]), torch.tensor([1]), torch.zeros(1, 3)), "give ids that its tables have"),
        ({"user": "Anna"}, "example: expected tensors or arrays, got str"),
        ({"user": [1, 2], "item": torch.tensor([1, 2])}, "example: 'user' is a list: expected a tensor"),
        ({"user": 3}, r"example: expected tensors of shape \(rows, ...\), got int"),
    ],
)
def test_an_example_that_does_not_fit_is_refused_in_words(example, text):
    with pytest.raises(ModelLoadError, match=text):
        models.from_torch(Ranker(), example=example)


RULES = {
    "modulo": (lambda self, i: self.table(i % 10), (Modulo(divisor=10),)),
    "fmod": (lambda self, i: self.table(torch.fmod(i, 10)), (Modulo(divisor=10, truncated=True),)),
    "shift": (lambda self, i: self.table(i >> 7), (Divide(divisor=128),)),
    "lowest bits": (lambda self, i: self.table(i & 7), (Modulo(divisor=8),)),
    "divide": (lambda self, i: self.table(i // 100), (Divide(divisor=100),)),
    "clamp": (
        lambda self, i: self.table(i.clamp(0, 9)),
        (Clip(least=0, most=(1 << 63) - 1), Clip(least=-(1 << 63), most=9)),
    ),
    "subtract": (lambda self, i: self.table(i - 5 + 2), (Add(values=(-3,)),)),
    "replace": (lambda self, i: self.table(torch.where(i == -1, 7, i)), (Replace(found=-1, by=7),)),
    "masked_fill": (lambda self, i: self.table(i.masked_fill(i == -1, 7)), (Replace(found=-1, by=7),)),
    "beyond": (
        lambda self, i: self.table(torch.where(i < 10, i, 0)),
        (Clip(least=-(1 << 63), most=10), Replace(found=10, by=0)),
    ),
    "outside": (
        lambda self, i: self.table(torch.where((i < 0) | (i >= 10), torch.full_like(i, 3), i)),
        (
            *(Clip(least=-1, most=(1 << 63) - 1), Replace(found=-1, by=3)),
            *(Clip(least=-(1 << 63), most=10), Replace(found=10, by=3)),
        ),
    ),
    "inside": (
        lambda self, i: self.table(torch.where((i >= 0) & (i < 10), i, torch.zeros_like(i))),
        (
            *(Clip(least=-1, most=(1 << 63) - 1), Replace(found=-1, by=0)),
            *(Clip(least=-(1 << 63), most=10), Replace(found=10, by=0)),
        ),
    ),
    "mask": (
        lambda self, i: self.table(i * (i < 10)),
        (Clip(least=-(1 << 63), most=10), Replace(found=10, by=0)),
    ),
    "hash": (
        lambda self, i: self.table((i * 2654435761 + 40503) % 10),
        (Multiply(factor=2654435761), Add(values=(40503,)), Modulo(divisor=10)),
    ),
    "from a number": (lambda self, i: self.table(9 - i), (Multiply(factor=-1), Add(values=(9,)))),
}


@pytest.mark.parametrize("name", RULES)
def test_arithmetic_on_ids_becomes_rules_at_the_door(name):
    forward, rules = RULES[name]
    module = written(forward)
    mlp = models.from_torch(module, example=torch.tensor([5]))
    (given,) = mlp.spec.inputs
    assert given.fields[0].rules == rules
    tried = [value for value in (-1, 0, 3, 5, 9, 10, 12, 101, 999, 1 << 40) if accepts(given, value)]
    assert len(tried) > 3
    assert_same(module, mlp, torch.tensor(tried))


def accepts(given, value):
    try:
        given.pack(np.array([value]))
    except InputError:
        return False
    return True


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_of_ids_are_masks_from_the_door(op):
    module = written(lambda self, i: self.fc(getattr(torch, op)(i, 4).float()))
    mlp = models.from_torch(module, example=torch.zeros(1, 3, dtype=torch.int64))
    far = (1 << 63) - 1
    assert_same(module, mlp, torch.tensor([[3, 4, 5], [far, -far - 1, 0], [-4, 4, 1 << 40]]))


def test_times_are_subtracted_from_before_they_become_floats():
    module = written(lambda self, time: self.fc((time - 1_700_000_000).float()))
    mlp = models.from_torch(module, example=torch.full((1, 3), 1_700_000_000))
    field = mlp.spec.inputs[0].fields[0]
    assert (field.kind, field.rules) == ("float", (Add(values=(-1_700_000_000,)),))
    assert_same(module, mlp, torch.tensor([[1_700_000_001, 1_700_000_002, 1_700_000_130]]))


@pytest.mark.parametrize(
    ("function", "added"),
    [
        (lambda time: (time.double() - 1.7e9) / 86400, -1_700_000_000),
        (lambda time: time.double() / 86400 - 19675.5, -1_699_963_200),
        (lambda time: torch.log1p(time.double() - 1.7e9), -1_700_000_000),
    ],
)
def test_a_number_subtracted_in_float64_is_subtracted_from_whole_numbers(function, added):
    module = written(
        lambda self, time: self.one(function(time).to(self.one.weight.dtype)), one=nn.Linear(1, 2)
    )
    mlp = models.from_torch(module, example=torch.tensor([[1_700_000_100]]))
    assert mlp.spec.inputs[0].fields[0].rules == (Add(values=(added,)),)
    assert_same(module, mlp, torch.tensor([[1_700_000_001], [1_700_090_001], [1_712_345_677]]))


def test_a_difference_of_two_inputs_in_float64_is_refused():
    module = written(lambda self, a, b: self.table.weight[0] * ((a.double() - b.double()) / 60).unsqueeze(1))
    with pytest.raises(ModelLoadError, match="it subtracts large whole numbers in float64"):
        models.from_torch(module, example=(torch.tensor([1_700_000_100]), torch.tensor([1_700_000_000])))
    single = written(lambda self, a, b: self.table.weight[0] * (a.float() - b.float()).unsqueeze(1))
    assert models.from_torch(single, example=(torch.tensor([3]), torch.tensor([2]))).spec.out_features == 3


@pytest.mark.parametrize("right", [False, True])
def test_whole_numbers_fall_in_buckets(right):
    module = written(
        lambda self, age: self.table(torch.bucketize(age, torch.tensor([3, 18, (1 << 24) - 1]), right=right))
    )
    mlp = models.from_torch(module, example=torch.tensor([5]))
    assert_same(module, mlp, torch.tensor([-1, 2, 3, 4, 17, 18, 19, (1 << 24) - 1, 1 << 24, (1 << 24) + 1]))
    far = written(lambda self, age: self.table(torch.bucketize(age, torch.tensor([1 << 24]))))
    with pytest.raises(ModelLoadError, match=r"expected boundaries of whole numbers below 2\^24"):
        models.from_torch(far, example=torch.tensor([5]))


@pytest.mark.parametrize("number", [1.7e9, torch.tensor(1.7e9)])
def test_a_number_subtracted_from_floats_in_float64_is_refused(number):
    module = written(lambda self, time: self.one((time - number).float()), one=nn.Linear(1, 2))
    with pytest.raises(ModelLoadError, match="it subtracts 1,700,000,000 in float64"):
        models.from_torch(module, example=torch.tensor([[1.7e9 + 60]], dtype=torch.float64))
    rounded = written(lambda self, time: self.one(time.float() - number), one=nn.Linear(1, 2))
    assert models.from_torch(rounded, example=torch.zeros(1, 1, dtype=torch.float64)).spec.out_features == 2


def test_columns_of_one_tensor_go_to_tables_of_their_own():
    tables = nn.ModuleList(nn.Embedding(size, 2) for size in (5, 100))
    module = written(
        lambda self, x: torch.cat([each(x[:, i]) for i, each in enumerate(self.tables)], 1), tables=tables
    )
    mlp = models.from_torch(module, example=torch.tensor([[4, 99]]))
    (given,) = mlp.spec.inputs
    assert [(field.size, field.positions) for field in given.fields] == [(5, (0,)), (100, (1,))]
    assert_same(module, mlp, torch.tensor([[4, 99], [0, 5]]))
    with pytest.raises(InputError, match="row 0, position 0: expected an id from 0 to 4, got 5"):
        given.pack(np.array([[5, 5]]))


def test_one_table_with_an_offset_for_each_column():
    module = written(lambda self, x: self.table(x + torch.tensor([0, 4])).flatten(1))
    mlp = models.from_torch(module, example=torch.tensor([[3, 5]]))
    assert mlp.spec.inputs[0].fields[0].rules == (Add(values=(0, 4)),)
    assert_same(module, mlp, torch.tensor([[3, 5], [9, -4]]))


def test_columns_of_floats_that_the_model_casts_are_ids():
    module = written(lambda self, x: self.fc(self.table(x[:, 0].long()) + x[:, 1:]))
    mlp = models.from_torch(module, example=torch.zeros(1, 4))
    (given,) = mlp.spec.inputs
    assert (given.dtype, {field.kind for field in given.fields}) == ("float32", {"float", "id"})
    assert_same(module, mlp, torch.tensor([[9.0, 1, 2, 3], [2.7, -1, 0, 1]]))
    for wrong in (10.0, -1.0, np.nan, 1e30):
        with pytest.raises(InputError, match="position 0: expected an id from 0 to 9"):
            given.pack(np.array([[wrong, 1, 2, 3]]))


def test_a_table_that_two_inputs_share_is_kept_once():
    module = written(lambda self, a, b: self.table(a) * self.table(b))
    mlp = models.from_torch(module, example=(torch.tensor([1]), torch.tensor([2])))
    assert list(mlp.tensors()) == ["table.weight"]
    assert_same(module, mlp, torch.tensor([1, 9]), torch.tensor([0, 9]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_keep_their_padding(mode):
    module = written(
        lambda self, i: self.fc(self.bag(i)), bag=nn.EmbeddingBag(10, 3, mode=mode, padding_idx=2)
    )
    mlp = models.from_torch(module, example=torch.zeros(1, 4, dtype=torch.int64))
    assert [(step.mode, step.padding) for step in mlp.spec.steps if isinstance(step, Bag)] == [(mode, 2)]
    assert_same(module, mlp, torch.tensor([[1, 2, 3, 2], [2, 2, 2, 2], [9, 9, 0, 1]]))


def test_bags_of_padding_may_be_many():
    """More than the rows of the check."""

    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(9, 2, mode="sum", padding_idx=0) for _ in range(70))
            self.fc = nn.Linear(140, 1)

        def forward(self, ids):
            return self.fc(torch.cat([bag(ids[:, 2 * i : 2 * i + 2]) for i, bag in enumerate(self.bags)], 1))

    assert models.from_torch(Bags(), torch.ones(1, 140, dtype=torch.int64)).spec.in_features == 140


@pytest.mark.parametrize(
    "options", [{"mode": "sum"}, {"mode": "mean", "padding_idx": 0}, {"mode": "max"}], ids=str
)
def test_bags_take_any_number_of_ids(options):
    module = written(lambda self, i, x: self.fc(self.bag(i)) + x, bag=nn.EmbeddingBag(10, 3, **options))
    ids, x = torch.randint(1, 10, (4, 5)), torch.randn(4, 2)
    mlp = models.from_torch(module, example=(ids, x))
    assert [(each.ragged, each.shape) for each in mlp.spec.inputs] == [(True, (5,)), (False, (2,))]
    kernel = kernels.compile(mlp)
    for count in (5, 1, 3):
        assert_same(module, mlp, ids[:, :count], x)
        short = np.pad(ids[:, :count].numpy(), ((0, 0), (0, 5 - count)), constant_values=-1)
        given = {"i": ids[:, :count].numpy(), "x": x.numpy()}
        np.testing.assert_array_equal(kernel(given), kernel({"i": short, "x": x.numpy()}))
    with pytest.raises(InputError, match=r"input 'i': expected shape \(rows, 5\), got \(1, 6\)"):
        mlp.spec.inputs[0].pack(np.zeros((1, 6), np.int64))


@pytest.mark.parametrize(
    "options", [{"mode": "sum"}, {"mode": "mean", "padding_idx": 0}, {"mode": "max"}], ids=str
)
def test_ids_and_offsets_are_one_input(options):
    bags = {"bag": nn.EmbeddingBag(10, 3, **options), "other": nn.EmbeddingBag(7, 2)}
    module = written(
        lambda self, i, offsets, x, j, j_offsets: (
            self.fc(self.bag(i, offsets)) + self.other(j, j_offsets) + x
        ),
        **bags,
    )
    x = torch.randn(3, 2)
    ids, offsets = torch.tensor([3, 4, 5, 1, 2, 9]), torch.tensor([0, 3, 3])
    others, starts = torch.tensor([6, 0, 1]), torch.tensor([0, 1, 2])
    mlp = models.from_torch(module, example=(ids, offsets, x, others, starts))
    assert [(each.name, each.ragged, each.shape) for each in mlp.spec.inputs] == [
        ("i", True, (3,)),
        ("x", False, (2,)),
        ("j", True, (1,)),
    ]
    with torch.inference_mode():
        expected = module(ids, offsets, x, others, starts)
    got = answers(mlp, [[3, 4, 5], [-1, -1, -1], [1, 2, 9]], x.numpy(), [[6], [0], [1]])
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelLoadError, match=r"'offsets': expected where bags of 'i' start"):
        models.from_torch(module, example=(ids, torch.tensor([1, 3, 3]), x, others, starts))


def masked(ids):
    return (ids != 2).float().unsqueeze(-1)


MASKED = {
    "sum": lambda self, i: self.fc((self.table(i) * masked(i)).sum(1)),
    "where": lambda self, i: self.fc(torch.where((i != 2).unsqueeze(-1), self.table(i), 0.0).sum(1)),
    "mean": lambda self, i: self.fc((masked(i) * self.table(i)).sum(1) / masked(i).sum(1).clamp(min=1)),
    "mean of a count": lambda self, i: self.fc(
        (self.table(i) * masked(i)).sum(1) / (i != 2).sum(1, keepdim=True).clamp(min=1)
    ),
}


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("count", [1, 5])
def test_rows_of_a_table_that_a_mask_leaves_out_are_a_bag(name, count):
    module = written(MASKED[name])
    mlp = models.from_torch(module, example=torch.zeros(1, count, dtype=torch.int64))
    if count > 1:
        assert [type(step) for step in mlp.spec.steps] == [Bag, Linear]
        assert (mlp.spec.steps[0].padding, mlp.spec.inputs[0].ragged) == (2, True)
        assert_same(module, mlp, torch.tensor([[9, 2], [2, 2]]))
    ids = torch.tensor([[1, 2, 3, 2, 9], [2, 2, 2, 2, 2], [9, 9, 0, 1, 0]])
    assert_same(module, mlp, ids[:, :count])


def test_ids_beyond_63_bits_are_refused_as_they_are():
    mlp = models.from_torch(Ranker(), example=EXAMPLE)
    with pytest.raises(InputError, match=r"whole numbers below 2\^63, got 18446744073709551615"):
        mlp.spec.inputs[0].pack(np.array([2**64 - 1], np.uint64))


def test_a_sum_of_table_rows_is_a_bag():
    mlp = models.from_torch(
        written(lambda self, i: self.fc(self.table(i).mean(1))), example=torch.zeros(1, 4, dtype=torch.int64)
    )
    assert [type(step) for step in mlp.spec.steps] == [Bag, Linear]


def test_one_hot_codes_become_columns_of_the_product_that_reads_them():
    module = written(
        lambda self, i, x: self.out(torch.cat([F.one_hot(i, 7).to(x.dtype), x], 1)), out=nn.Linear(9, 4)
    )
    mlp = models.from_torch(module, example=(torch.tensor([6]), torch.zeros(1, 2)))
    tables = [step for step in mlp.spec.steps if isinstance(step, Embedding)]
    assert [(step.size, step.features) for step in tables] == [(7, 4)]
    assert_same(module, mlp, torch.tensor([0, 6]), torch.randn(2, 2))


def test_all_products_below_the_diagonal_are_one_step():
    def forward(self, x):
        vectors = x.unflatten(1, (4, 3))
        first, second = torch.tril_indices(4, 4, -1)
        return (vectors @ vectors.transpose(1, 2))[:, first, second]

    mlp = models.from_torch(written(forward), in_features=12)
    assert [type(step) for step in mlp.spec.steps] == [Dot]
    assert not mlp.spec.steps[0].itself


def test_missing_values_are_found_and_filled():
    def forward(self, x):
        missing = torch.isnan(x)
        return self.fc(torch.where(missing, self.means, x)) + missing.any(1, keepdim=True)

    module = written(forward, means=nn.Parameter(torch.tensor([1.0, 2.0, 3.0])))
    mlp = models.from_torch(module, in_features=3)
    assert any(isinstance(step, Compare) for step in mlp.spec.steps)
    x = torch.tensor([[np.nan, 1.0, np.nan], [1.0, 2.0, 3.0], [np.nan] * 3])
    with torch.inference_mode():
        np.testing.assert_allclose(evaluate(mlp, x.double().numpy()), module(x).numpy(), rtol=1e-5)


@pytest.mark.parametrize("function", [torch.fmax, torch.fmin, torch.maximum])
def test_fmax_and_fmin_prefer_numbers_to_nan(function):
    module = written(lambda self, x: function(x[:, :2], x[:, 2:]))
    mlp = models.from_torch(module, in_features=4)
    x = np.array([[np.nan, 1.0, 2.0, np.nan], [np.nan, 1, np.nan, 3]])
    np.testing.assert_array_equal(evaluate(mlp, x), function(torch.tensor(x[:, :2]), torch.tensor(x[:, 2:])))


def test_a_step_function_is_a_comparison():
    module = written(lambda self, x: (self.fc(x) > 0).float())
    mlp = models.from_torch(module)
    x = torch.randn(5, 3)
    with torch.inference_mode():
        np.testing.assert_array_equal(evaluate(mlp, x.double().numpy()), module(x).numpy())


def test_an_autocast_inside_forward_is_refused():
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.fc(x)

    with pytest.raises(
        ModelLoadError, match=r"it computes in bfloat16 inside torch.autocast.*dtype='bfloat16'"
    ):
        models.from_torch(written(forward))


def test_layers_that_are_not_registered_are_read_too():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(3, 2)]

        def forward(self, x):
            return self.layers[0](x)

    assert models.from_torch(Hidden(), in_features=3).spec.summary() == "3-2"
    with pytest.raises(ModelLoadError, match="Hidden has no weights that tell the width of its rows"):
        models.from_torch(Hidden())


def test_an_error_without_a_text_is_named():
    def forward(self, x):
        raise RuntimeError

    with pytest.raises(
        ModelLoadError, match=r"could not be run on \(rows, 3\) inputs: RuntimeError \(test_named"
    ):
        models.from_torch(written(forward), in_features=3)


@pytest.mark.parametrize(
    ("forward", "text"),
    [
        (lambda self, i: self.table(i.int() * 2), r"may overflow: make them int64 first, ids.long\(\)"),
        (lambda self, i: self.table(i + i), "the model computes ids from ids"),
        (lambda self, i: self.table(torch.where(i > 3, i, i + 1)), "expected constants to add"),
        (lambda self, i: self.table(torch.where(i > 3, 0, i + 1)), "expected a comparison of the same ids"),
        (lambda self, i: F.one_hot(i, 5000).float(), "a one-hot code of 5000 classes"),
    ],
)
def test_arithmetic_that_no_rule_is_made_of_is_refused(forward, text):
    with pytest.raises(ModelLoadError, match=text):
        models.from_torch(written(forward), example=torch.tensor([0]))


def test_exported_programs_keep_their_inputs(tmp_path):
    rows = torch.export.Dim("rows")
    exported = torch.export.export(
        Ranker(), tuple(EXAMPLE.values()), dynamic_shapes=({0: rows}, {0: rows}, {0: rows})
    )
    torch.export.save(exported, tmp_path / "ranker.pt2")
    mlp = import_model(tmp_path / "ranker.pt2", tmp_path / "repository", "ranker").mlp
    assert [(each.name, each.kind) for each in mlp.spec.inputs] == [
        ("user", "id"),
        ("item", "id"),
        ("x", "float"),
    ]
    exported = torch.export.export(
        OfDict(), (EXAMPLE,), dynamic_shapes=({name: {0: rows} for name in EXAMPLE},)
    )
    torch.export.save(exported, tmp_path / "dict.pt2")
    mlp = import_model(tmp_path / "dict.pt2", tmp_path / "repository", "dict").mlp
    assert [each.name for each in mlp.spec.inputs] == ["user", "item", "x"]


def test_computed_ids_stay_within_their_table():
    edges = torch.arange(9.0)
    taken = written(lambda self, x: self.table(torch.bucketize(x[:, 0], edges)))
    assert models.from_torch(taken, in_features=3).spec.out_features == 3
    beyond = written(lambda self, x: self.table(torch.bucketize(x[:, 0], torch.arange(10.0))))
    with pytest.raises(ModelLoadError, match="it looks up 11 different ids in a table of 10 rows"):
        models.from_torch(beyond, in_features=3)


def test_whole_numbers_are_an_example_for_a_module_of_floats():
    mlp = models.from_torch(nn.Linear(3, 2), example=np.array([[1, 2, 3]]))
    assert (mlp.spec.inputs, mlp.example) == (None, (1.0, 2.0, 3.0))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8])
def test_ids_of_a_narrow_dtype_are_checked_within_it(dtype):
    module = written(lambda self, i: self.big(i.long()), big=nn.Embedding(300, 3))
    mlp = models.from_torch(module, example=torch.ones(1, dtype=dtype))
    assert_same(module, mlp, torch.ones(1, dtype=dtype))


def test_jagged_tensors_are_refused_in_one_line():
    class KeyedJaggedTensor:
        pass

    with pytest.raises(ModelLoadError, match="KeyedJaggedTensors are not served: give ids and offsets"):
        models.from_torch(Ranker(), example={"user": KeyedJaggedTensor(), "item": torch.tensor([1])})


def test_a_file_may_hold_an_example(tmp_path):
    source = "import torch\nfrom tests.models.importers.test_named_inputs import EXAMPLE, Ranker\n"
    (tmp_path / "with_example.py").write_text(f"{source}example_inputs = EXAMPLE\n")
    (tmp_path / "without_example.py").write_text(source)
    mlp = import_model(f"{tmp_path}/with_example.py:Ranker", tmp_path / "repository", "ranker").mlp
    assert [each.name for each in mlp.spec.inputs] == ["user", "item", "x"]
    with pytest.raises(ModelLoadError, match="write an example of each into the file, example_inputs = "):
        import_model(f"{tmp_path}/without_example.py:Ranker", tmp_path / "repository", "other")
