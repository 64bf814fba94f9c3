# SPDX-License-Identifier: Apache-2.0
"""An example, run as its README says: its folder copied, its commands typed in order, and what they print kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.docs.page import read_page
from tests.docs.session import Session


@contextmanager
def running(name: str, folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Session]:
    """All commands have run, and those in the background still do."""
    with Session(read_page(f"examples/{name}/README.md"), folder, environment) as session:
        session.run_blocks()
        yield session


def run(name: str, folder: Path) -> str:
    with running(name, folder) as session:
        return session.printed()
