# SPDX-License-Identifier: Apache-2.0
"""The committed demo model really is the classifier that its description promises."""

import re

import pytest
import torch

from fused_mlp.models import Repository
from fused_mlp.models.demo import REPOSITORY


@pytest.fixture(scope="module")
def digits():
    return Repository(REPOSITORY).load("digits")


def test_the_demo_repository_holds_usable_models_only():
    (model,) = Repository(REPOSITORY).scan()
    assert model.usable == model.versions
    assert model.problems == ()


def test_digits_is_at_least_97_percent_right_on_its_held_out_split(digits):
    from fused_mlp.models.demo.train_digits import load_split

    _, _, pixels, truth = load_split()
    with torch.inference_mode():
        probabilities = digits.to_torch()(pixels)
    right = (probabilities.argmax(1) == truth).double().mean().item()
    assert right >= 0.97
    assert f"{right:.2%}" in digits.source


def test_digits_example_is_the_digit_its_description_says(digits):
    with torch.inference_mode():
        (probabilities,) = digits.to_torch()(torch.tensor([digits.example]))
    said = re.search(r"image of a (\d)", digits.spec.description)
    assert said is not None
    assert digits.spec.labels[int(probabilities.argmax())] == said.group(1)
    assert probabilities.sum().item() == pytest.approx(1.0)


def test_digits_is_small_and_takes_raw_pixels(digits):
    size = sum(file.stat().st_size for file in (REPOSITORY / "digits" / "1").iterdir())
    assert size < 1_000_000
    assert digits.spec.in_features == 64
    assert max(digits.example) == 16.0
    assert digits.spec.labels == tuple("0123456789")
