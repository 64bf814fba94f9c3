# SPDX-License-Identifier: Apache-2.0
"""The commands of the README against a real server."""

import json

from tests.support.server import Server


def test_predict_example_prints_the_right_digit(cli, server):
    outcome = cli("predict", "digits", "--example", target=server.target)
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[2].split()[0] == "4"  # the example is a held-out image of a 4


def test_example_of_a_model_that_is_loaded_on_demand_loads_it(cli):
    with Server(load="lazy") as lazy:
        outcome = cli("predict", "digits", "--example", target=lazy.target)
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[2].split()[0] == "4"


def test_both_variants_agree(cli, server):
    answers = [
        json.loads(cli("predict", "digits", "--example", "--json", "--variant", v, target=server.target).out)
        for v in ("fused", "unfused")
    ]
    assert [answer["variant"] for answer in answers] == ["fused", "unfused"]
    for fused, unfused in zip(*(answer["output"] for answer in answers), strict=True):
        assert abs(fused - unfused) < 1e-5  # float32 probabilities, summed in another order


def test_models_and_health(cli, server):
    assert "digits" in cli("models", target=server.target).out
    assert cli("health", target=server.target).code == 0
    assert cli("health", "digits", target=server.target).code == 0
    assert cli("health", "nope", target=server.target).code == 1
