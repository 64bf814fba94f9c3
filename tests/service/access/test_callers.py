# SPDX-License-Identifier: Apache-2.0
"""The file of callers: what a line means."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fused_mlp.service.access.callers import Callers


def test_a_comment_is_a_whole_line_and_a_name_may_hold_its_sign(tmp_path: Path) -> None:
    path = tmp_path / "callers"
    path.write_text("# people\nURI:https://example.org/x#deployer\nCN:Ops #1\n")
    callers = Callers(path, certificates=True)
    assert callers.has_name(["URI:https://example.org/x#deployer"])
    assert callers.has_name(["CN:Ops #1"])
    assert not callers.has_name(["URI:https://example.org/x", "CN:Ops"])


def test_a_comment_may_follow_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "callers"
    path.write_text(f"sha256:{hashlib.sha256(b'secret').hexdigest()}  # of Ann\n")
    assert Callers(path, certificates=False).has_token("secret")


def test_a_line_that_is_no_caller_is_refused_by_its_number_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "callers"
    path.write_text("CN:deployer\nsecret # of Ann\n")
    with pytest.raises(ValueError, match="line 2: expected") as refusal:
        Callers(path, certificates=True)
    assert "secret" not in str(refusal.value)
