# SPDX-License-Identifier: Apache-2.0
"""docs/models/programs.md says what the code does: its example runs, and its lists are complete."""

import re
from pathlib import Path
from typing import get_args

from fused_mlp.models.program.formula import MAX_INSTRUCTIONS, PARAMETERS, SUGAR
from fused_mlp.models.program.spec import Combination, Step

PAGE = (Path(__file__).parents[3] / "docs" / "models" / "programs.md").read_text()


def test_the_example_prints_what_its_comments_say(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "programs.md", "exec"), {})
    expected = re.findall(r"^print\(.*\)  # (.*)$", example, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == expected


def test_every_step_is_in_the_table():
    union = get_args(Step)[0]
    ops = {op for step in get_args(union) for op in get_args(step.model_fields["op"].annotation)}
    assert set(get_args(Combination)) < ops
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    assert {op for row in rows for op in re.findall(r"`(\w+)`", row)} == ops


def test_every_function_is_listed():
    quoted = " ".join(re.findall(r"^> (.*)$", PAGE, re.MULTILINE))
    assert set(re.findall(r"(\w+)(?:\([^)]*\))?(?:,|$)", quoted)) == set(PARAMETERS)
    names = re.search(r"names for formulas: ([\w, \n]+)\.", PAGE).group(1)
    assert {name.strip() for name in names.split(",")} == set(SUGAR) - {"identity"}
    assert f"at most {MAX_INSTRUCTIONS} operations" in PAGE
