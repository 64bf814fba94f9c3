"""The README says what the code does: the table of settings is generated, never written by hand."""

from pathlib import Path

import pytest

from fused_mlp.service.settings.readme_table import settings_table, with_table
from fused_mlp.service.settings.settings import GROUPS, Settings

README = Path(__file__).resolve().parent.parent / "README.md"


def test_readme_has_the_settings_as_they_are():
    text = README.read_text()
    assert text == with_table(text), "run: python -m fused_mlp.service.settings.readme_table --write"


def test_table_names_every_setting_once_and_nothing_of_this_machine():
    table = settings_table()
    for name in Settings.model_fields:
        assert table.count(f"`FUSED_MLP_{name.upper()}`") == 1
    assert str(README.parent) not in table
    assert "| `FUSED_MLP_MODEL_REPOSITORY` | `models/demo` |" in table


def test_groups_begin_with_settings_that_exist():
    assert GROUPS.keys() <= Settings.model_fields.keys()
    assert next(iter(GROUPS)) == next(iter(Settings.model_fields))


def test_missing_markers_are_named():
    with pytest.raises(ValueError, match="<!-- settings -->"):
        with_table("no markers here")
