# SPDX-License-Identifier: Apache-2.0
"""The notebook runs from top to bottom, and what it prints is what is stored in it, but for times and addresses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.docs.page import ROOT
from tests.examples.running import running


def outputs(path: Path) -> list[str]:
    """Of each cell of code, with figures masked."""
    cells: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return [
        re.sub(r"[\d.]+ us", "N us", "".join(text_of(output) for output in cell["outputs"]))
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def text_of(output: dict[str, Any]) -> str:
    assert output["output_type"] != "error", output
    return "".join(output.get("text") or output["data"]["text/plain"])


def test_notebook_runs_and_its_stored_outputs_are_current(tmp_path: Path) -> None:
    stored = outputs(ROOT / "examples/notebook/serve.ipynb")
    with running("notebook", tmp_path) as session:
        made = outputs(session.folder / "serve.ipynb")
    assert made == stored
    assert "(8, 5) fused\nas torch: True\n" in made
    assert made[-1].startswith("<LocalServer 'model' stopped")
