# SPDX-License-Identifier: Apache-2.0
"""The API reference: every public name is on it, has a text, and its examples do what they say."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from pydoc import locate

import pytest

import fused_mlp
from tests.docs.page import ROOT
from tests.support.server import Server, free_port

LISTED = re.findall(r"^::: (\S+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)


def test_every_public_name_is_on_the_page():
    public = {f"fused_mlp.{name}" for name in fused_mlp.__all__ if name != "__version__"}
    assert public <= set(LISTED)
    assert len(LISTED) == len(set(LISTED))


def _documented(name: str) -> Iterator[tuple[str, object]]:
    """The object of that name and, of a class, its public methods and properties."""
    found = locate(name)
    yield name, found
    if inspect.isclass(found):
        for own, member in vars(found).items():
            if not own.startswith("_") and (callable(member) or isinstance(member, property | classmethod)):
                yield f"{name}.{own}", member


@pytest.mark.parametrize("name", LISTED)
def test_names_on_the_page_exist_and_have_a_text(name: str):
    for each, found in _documented(name):
        assert found is not None, f"there is no {each}"
        assert inspect.getdoc(found), f"{each} has no docstring"


@pytest.mark.parametrize(
    "name",
    [name for name in LISTED if inspect.isfunction(locate(name))],
)
def test_texts_of_functions_name_every_argument(name: str):
    function = locate(name)
    text = inspect.getdoc(function) or ""
    for argument in inspect.signature(function).parameters:
        assert re.search(rf"^ +{argument}: ", text, re.MULTILINE), f"{name}: no word about '{argument}'"


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, str]]:
    """A server of the demo, and what stands for its ports in the examples."""
    admin = free_port()
    with Server(admin_port=admin) as server:
        yield {"8001": server.target.rpartition(":")[2], "8003": str(admin)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (each, text)
        for name in LISTED
        for each, found in _documented(name)
        if ">>>" in (text := inspect.getdoc(found) or "")
    ],
)
def test_examples_in_texts_do_what_they_say(
    name: str, text: str, ports: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import asyncio

    import numpy as np
    import torch

    from fused_mlp.service.client.admin import AdminClient

    monkeypatch.chdir(tmp_path)
    for written, real in ports.items():
        text = text.replace(written, real)
    names = {name: getattr(fused_mlp, name) for name in ("AsyncClient", "Client", "PredictError")}
    names |= {
        "fused_mlp": fused_mlp,
        "torch": torch,
        "np": np,
        "asyncio": asyncio,
        "AdminClient": AdminClient,
    }
    example = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    said: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert not result.failed, "".join(said)
