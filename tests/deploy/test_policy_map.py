# SPDX-License-Identifier: Apache-2.0
"""A policy in a ConfigMap, as the kubelet mounts and replaces it."""

from __future__ import annotations

import os
from pathlib import Path

from fused_mlp import models
from tests.support.server import Server, demo_copy
from tests.support.waiting import wait_until

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"


def mount(folder: Path, policy: Path, turn: int) -> None:
    """All at once: the files are links into ..data, itself a link that is replaced."""
    (folder / f"..{turn}").mkdir(parents=True)
    (folder / f"..{turn}/policy.json").write_text(policy.read_text())
    (folder / "..next").symlink_to(f"..{turn}")
    os.replace(folder / "..next", folder / "..data")
    if turn == 0:
        (folder / "policy.json").symlink_to("..data/policy.json")


def test_a_pod_follows_the_policy_of_its_config_map(tmp_path: Path) -> None:
    root, mounted = demo_copy(tmp_path / "models"), tmp_path / "policy"
    models.save(models.load(root / "digits/1"), root / "digits/2")
    mount(mounted, KUBERNETES / "base/policy.json", 0)
    with Server(model_repository=root, policy_file=mounted / "policy.json") as server:
        assert server.metric("fused_mlp_canary_info", model="digits", to="2") == 0
        mount(mounted, KUBERNETES / "overlays/canary-versions/policy.json", 1)
        wait_until(
            # `latest` is a number from the start of a canary on.
            lambda: server.metric("fused_mlp_canary_info", model="digits", to="2", state="running") == 1
        )
