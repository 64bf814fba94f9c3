# SPDX-License-Identifier: Apache-2.0
"""Examples that bring a model: each ends with the same answers as the framework that it comes from."""

from __future__ import annotations

import re
from pathlib import Path

from tests.examples.running import run


def number(pattern: str, printed: str) -> float:
    (found,) = re.findall(pattern, printed)
    return float(found)


def test_torch_class_is_served_and_answers_as_in_torch(tmp_path: Path) -> None:
    printed = run("torch_to_server", tmp_path)
    assert "version 1, fused, 1000 rows" in printed
    assert number(r"largest difference from torch: (\S+)", printed) < 1e-5
    assert number(r"right: (\S+)%", printed) > 95
    assert "blue" in printed  # `fused-mlp predict` shows labels


def test_feed_forward_blocks_of_a_transformer_are_replaced(tmp_path: Path) -> None:
    printed = run("transformer_feed_forward", tmp_path)
    assert re.findall(r"replaced (\S+): (.*)", printed) == [
        ("layers.0.mlp", "512-1376-512 gated silu"),
        ("layers.1.mlp", "512-1376-512 gated silu"),
    ]
    assert max(map(float, re.findall(r"largest difference (\S+)", printed))) < 1e-4
    assert (
        len(re.findall(r"us, fused [\d,]+ us, [\d.]+x", printed)) == 4
    )  # how much faster is the machine's business


def test_scikit_learn_pipeline_predicts_the_same_classes(tmp_path: Path) -> None:
    printed = run("scikit_learn", tmp_path)
    assert "45 of 45 predictions are those of scikit-learn" in printed
    assert number(r"largest difference of a probability: (\S+)", printed) < 1e-5


def test_policy_with_two_heads_balances_the_pole(tmp_path: Path) -> None:
    printed = run("actor_critic", tmp_path)
    assert "output logits: 2 number(s)\noutput value: 1 number(s)\n" in printed
    assert number(r"the pole stood for (\d+) steps", printed) == 300
    assert re.search(r'"outputs": \{"logits": \[\[.*\]\], "value": \[', printed)


def test_two_towers_find_the_items_that_numpy_finds(tmp_path: Path) -> None:
    printed = run("two_tower", tmp_path)
    assert "float32: the items of numpy, the scores too" in printed
    assert number(r"int8: (\d+) of 10 items are those of float32", printed) >= 9
