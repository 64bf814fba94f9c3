# SPDX-License-Identifier: Apache-2.0
"""docs/operations/security.md names tests, limits and settings that exist, with the defaults that they have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fused_mlp.service.settings.limits import Limits
from fused_mlp.service.settings.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "operations" / "security.md").read_text()


def table(name: str) -> list[list[str]]:
    text = PAGE.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]
    return rows[2:]


@pytest.mark.parametrize(("threat", "tests"), table("threats"))
def test_each_threat_has_tests_that_exist(threat: str, tests: str) -> None:
    names = re.findall(r"`(\S+?)::(\w+)`", tests)
    assert names, threat
    for file, function in names:
        assert re.search(rf"^\s*(async )?def {function}\(", (ROOT / file).read_text(), re.MULTILINE), function


def test_every_attack_is_in_the_threat_table() -> None:
    attacks = {
        f"{path.relative_to(ROOT)}::{name}"
        for path in (ROOT / "tests" / "attack").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    assert attacks <= set(re.findall(r"`(\S+::\w+)`", PAGE))


def test_bounds_are_settings_with_their_defaults() -> None:
    for resource, bounded_by, default, _ in table("bounds"):
        for name in re.findall(r"`(\w+)`", bounded_by):
            if name.startswith("FUSED_MLP_"):
                field = Settings.model_fields[name.removeprefix("FUSED_MLP_").lower()]
            else:
                field = Limits.model_fields[name]
            if default:
                assert default == f"`{field.default}`", resource


def test_settings_in_the_text_exist() -> None:
    for name in re.findall(r"`FUSED_MLP_(\w+)`", PAGE):
        assert name.lower() in Settings.model_fields, name
