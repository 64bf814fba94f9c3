# SPDX-License-Identifier: Apache-2.0
"""docs/operations/settings.md: its tables are generated, and as the code has them."""

from pathlib import Path

import pytest

from fused_mlp.service.settings.limits import Limits
from fused_mlp.service.settings.page import PAGE, limits_table, settings_table, with_tables
from fused_mlp.service.settings.settings import GROUPS, Settings

ROOT = Path(__file__).resolve().parent.parent


def test_tables_are_as_the_code_has_them():
    text = (ROOT / PAGE).read_text()
    assert text == with_tables(text), "run: python -m fused_mlp.service.settings.page --write"


def test_table_names_every_setting_once_and_nothing_of_this_machine():
    table = settings_table()
    for name in Settings.model_fields:
        assert table.count(f"`FUSED_MLP_{name.upper()}`") == 1
    assert str(ROOT) not in table
    assert "| `FUSED_MLP_MODEL_REPOSITORY` | `models/demo` |" in table


def test_table_names_every_limit_with_its_default():
    table = limits_table()
    for name in Limits.model_fields:
        assert table.count(f"| `{name}` |") == 1
    assert "| `max_pings_per_s` | `100` |" in table


def test_pages_that_a_description_names_are_links_that_exist():
    table = settings_table()
    assert "[operations/reload.md](reload.md)" in table
    assert "[clients/rest.md](../clients/rest.md)" in table
    assert "; docs/" not in table


def test_groups_begin_with_settings_that_exist():
    assert GROUPS.keys() <= Settings.model_fields.keys()
    assert next(iter(GROUPS)) == next(iter(Settings.model_fields))


def test_missing_markers_are_named():
    with pytest.raises(ValueError, match="<!-- settings -->"):
        with_tables("no markers here")
