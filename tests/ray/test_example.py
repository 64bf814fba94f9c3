# SPDX-License-Identifier: Apache-2.0
"""The commands of examples/ray/README.md, on the cluster of these tests."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from tests.examples.running import running
from tests.ray.cluster import Nodes


def test_fleet_of_the_example_answers_and_shares_the_requests(nodes: Nodes, tmp_path: Path) -> None:
    # The command of this environment is that of the one it borrows from, which has no Ray.
    command = tmp_path / "bin" / "fused-mlp"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fused_mlp.service.cli "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join([str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    with running("ray", tmp_path, {"PATH": path, "RAY_ADDRESS": nodes.cluster.address}) as session:
        printed = session.printed()
    assert "300 requests over 2 replicas; the last answer has 10 numbers" in printed
    answered = [int(count) for count in re.findall(r"^  \S+ on \S+: (\d+)$", printed, re.MULTILINE)]
    assert sum(answered) == 300
    assert min(answered) > 100, "in turns, once both are connected"
