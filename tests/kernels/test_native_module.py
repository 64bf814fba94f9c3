# SPDX-License-Identifier: Apache-2.0
"""The compiled module at interpreter exit, and when no thread can be started."""

import subprocess
import sys


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_kernel_referenced_at_exit_is_not_reported_as_a_leak():
    done = run(
        "import ctypes, torch\n"
        "from fused_mlp import kernels\n"
        "fused = kernels.FusedMLP.from_torch(torch.nn.Sequential(torch.nn.Linear(4, 4)))\n"
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(fused))  # a reference that is never released\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_probe_whose_threads_cannot_be_started_says_so():
    done = run(
        "import resource\n"
        "from fused_mlp.kernels import _cpu\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "limit = pages * resource.getpagesize() + (64 << 20)  # of address space: no room for 64 stacks\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "try:\n"
        "    _cpu.probe_flops(64)\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    assert done.returncode == 0, done.stderr
    assert "expected to start 64 threads, got" in done.stdout
