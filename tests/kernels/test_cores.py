# SPDX-License-Identifier: Apache-2.0
"""Threads by what the container may use: CPU quotas of both versions of control groups, and the pod's request."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fused_mlp.kernels import cores
from fused_mlp.service.settings.environment import load_settings
from fused_mlp.service.settings.settings import SettingsError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Of 16 cores, with the files that a test writes into <folder>/cgroup and <folder>/own."""
    monkeypatch.delenv(cores.VARIABLE, raising=False)
    monkeypatch.setattr(cores, "_CPUS", tmp_path / "cpus")
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    cores.usable_cores.cache_clear()
    yield tmp_path
    cores.usable_cores.cache_clear()


V1, V2 = "3:memory:/pods/a\n2:cpu,cpuacct:{0}\n0::/\n", "0::{0}\n"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        pytest.param("", {}, 16, id="no control groups"),
        pytest.param(V2.format("/"), {"cpu.max": "max 100000"}, 16, id="v2 without a limit"),
        pytest.param(V2.format("/"), {"cpu.max": "400000 100000"}, 4, id="v2 in a namespace"),
        pytest.param(V2.format("/../pod/a"), {"cpu.max": "150000 100000"}, 1, id="v2 with the host's path"),
        pytest.param(V2.format("/"), {"cpu.max": "50000 100000"}, 1, id="v2 half a core"),
        pytest.param(
            V2.format("/slice/unit"),
            {"slice/cpu.max": "300000 100000", "slice/unit/cpu.max": "max 100000"},
            3,
            id="v2 the limit of an outer group",
        ),
        pytest.param(
            V1.format("/pods/a"),
            {"cpu,cpuacct/cpu.cfs_quota_us": "250000", "cpu,cpuacct/cpu.cfs_period_us": "50000"},
            5,
            id="v1 with the host's path",
        ),
        pytest.param(
            V1.format("/pods/a"),
            {"cpu/pods/a/cpu.cfs_quota_us": "200000", "cpu/pods/a/cpu.cfs_period_us": "100000"},
            2,
            id="v1 mounted by one controller's name",
        ),
        pytest.param(
            V1.format("/"),
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            16,
            id="v1 without a limit",
        ),
    ],
)
def test_cpu_quotas_of_both_versions_bound_the_cores(
    machine: Path, own: str, files: dict[str, str], expected: int
) -> None:
    (machine / "own").write_text(own)
    for name, text in files.items():
        path = machine / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert cores.usable_cores() == expected


@pytest.mark.parametrize(("request_of_the_pod", "expected"), [("2", 2), ("0", 16), ("", 16), ("64", 16)])
def test_a_pods_request_bounds_the_cores(
    machine: Path, monkeypatch: pytest.MonkeyPatch, request_of_the_pod: str, expected: int
) -> None:
    monkeypatch.setenv(cores.VARIABLE, request_of_the_pod)
    settings = load_settings()
    assert settings.event_loops == expected
    assert settings.warnings == ()


@pytest.mark.parametrize("value", ["500m", "-1", "1.5", "all"])
def test_what_is_no_number_of_cores_is_named_in_one_line(
    machine: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(cores.VARIABLE, value)
    with pytest.raises(SettingsError) as failure:
        load_settings()
    assert str(failure.value).startswith(f"FUSED_MLP_CORES={value!r}: expected a whole number of cores")


@pytest.fixture
def group() -> Iterator[Path]:
    """A new control group with a quota of one core."""
    for root, limit in (
        (Path("/sys/fs/cgroup"), "cpu.max"),
        (Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us"),
    ):
        made = root / f"fused-mlp-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            made.mkdir()
            try:
                if (made / limit).exists():
                    (made / limit).write_text("100000")
                    yield made
                    return
            finally:
                made.rmdir()
    pytest.skip("no control group can be made here: that takes root and a writable /sys/fs/cgroup")


def test_a_process_under_a_real_quota_uses_one_core(group: Path) -> None:
    code = "from fused_mlp.kernels.cores import usable_cores; print(usable_cores())"
    command = f"{sys.executable} -c '{code}'"
    seen = [
        subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout.strip()
        for line in (command, f"echo $$ > {group}/cgroup.procs && exec {command}")
    ]
    if seen[0] == "1":
        pytest.skip("one core is all there is")
    assert seen[1] == "1"
