# SPDX-License-Identifier: Apache-2.0
"""The generated tables of the reference. That pages have them as the code does, test_docs.py checks for all figures."""

from __future__ import annotations

import re

from bench.docs.figures.reference import commands, limits_table, settings_table
from bench.docs.registry import FIGURES, ROOT, Results
from fused_mlp.service.settings.limits import Limits
from fused_mlp.service.settings.settings import GROUPS, Settings
from tests.support.documents import PAGE

TEXT = PAGE.read_text()


def test_table_names_every_setting_once_and_nothing_of_this_machine():
    table = settings_table(Results())
    for name in Settings.model_fields:
        assert table.count(f"`FUSED_MLP_{name.upper()}`") == 1
    assert str(ROOT) not in table
    assert "| `FUSED_MLP_MODEL_REPOSITORY` | `models/demo` |" in table


def test_table_names_every_limit_with_its_default():
    table = limits_table(Results())
    for name in Limits.model_fields:
        assert table.count(f"| `{name}` |") == 1
    assert "| `max_pings_per_s` | `100` |" in table


def test_pages_that_a_description_names_are_links_that_exist():
    table = settings_table(Results())
    assert "[operations/reload.md](reload.md)" in table
    assert "[clients/rest.md](../clients/rest.md)" in table
    assert "; docs/" not in table


def test_groups_begin_with_settings_that_exist():
    assert GROUPS.keys() <= Settings.model_fields.keys()
    assert next(iter(GROUPS)) == next(iter(Settings.model_fields))


def test_every_command_has_a_heading_an_example_and_its_options():
    headings = re.findall(r"^#{2,3} (.+)$", TEXT, re.MULTILINE)
    for name in commands():
        assert name in headings
        assert re.search(rf"^fused-mlp {name}\b", TEXT, re.MULTILINE), name
        assert f"<!-- figure: options-{name.replace(' ', '-')} -->" in TEXT or name == "serve"


def test_defaults_of_0_and_1_are_shown_and_those_of_flags_are_not():
    options = FIGURES["options-ray-up"](Results())
    assert re.search(r"^\| `--cpus CPUS` \| `1` \|", options, re.MULTILINE)
    assert re.search(r"^\| `--gpus GPUS` \| `0` \|", options, re.MULTILINE)
    assert re.search(r"^\| `--wait, --no-wait` \| +\|", options, re.MULTILINE)
