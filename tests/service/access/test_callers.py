# SPDX-License-Identifier: Apache-2.0
"""The file of callers: what a line means."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fused_mlp.service.access.callers import read_list


def test_a_comment_is_a_whole_line_and_a_name_may_hold_its_sign(tmp_path: Path) -> None:
    path = tmp_path / "callers"
    path.write_text("# people\nURI:https://example.org/x#deployer\nCN:Ops #1\n")
    assert read_list(path, certificates=True).names == {"URI:https://example.org/x#deployer", "CN:Ops #1"}


def test_a_comment_may_follow_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "callers"
    digest = hashlib.sha256(b"secret").hexdigest()
    path.write_text(f"sha256:{digest}  # of Ann\n")
    assert read_list(path, certificates=False).digests == {digest}


def test_a_line_that_is_no_caller_is_refused_by_its_number_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "callers"
    path.write_text("CN:deployer\nsecret # of Ann\n")
    with pytest.raises(ValueError, match="line 2: expected") as refusal:
        read_list(path, certificates=True)
    assert "secret" not in str(refusal.value)
