# SPDX-License-Identifier: Apache-2.0
"""Which versions a policy has served."""

from __future__ import annotations

import pytest

from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.policy.policy import Policy


@pytest.mark.parametrize(
    ("policy", "failed", "chosen"),
    [
        ({}, [], {1, 2, 3, 4}),
        ({"versions": "latest:2"}, [], {3, 4}),
        ({"versions": "latest:9"}, [], {1, 2, 3, 4}),
        ({"versions": "latest:2"}, [4], {2, 3, 4}),
        ({"versions": "latest:1"}, [1, 2, 3, 4], {1, 2, 3, 4}),
        ({"versions": "2,7"}, [], {2}),
        ({"versions": "latest:1", "version": "2"}, [], {2, 4}),
        ({"version": "7"}, [], {1, 2, 3, 4}),
    ],
)
def test_versions_are_chosen(policy: dict[str, str], failed: list[int], chosen: set[int]) -> None:
    assert Policy(**policy).selected([1, 2, 3, 4], failed) == chosen


@pytest.mark.parametrize("wrong", ["", "newest", "latest:0", "latest:", "0", "1,", "-1", "1, 2"])
def test_what_names_no_versions_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="versions: expected all, latest:2, or numbers such as 3,5, got"):
        Policy().changed({"versions": wrong})


def test_a_version_may_be_a_number_of_json() -> None:
    policy = Policy(version=2, shadow_arm=3, canary={"to": 4})
    assert (policy.version, policy.shadow_arm) == ("2", "3")
    assert policy.canary is not None
    assert policy.canary.to == "4"
    with pytest.raises(ValueError, match="valid string"):
        Policy(version=True)
