"""The compiled module as a guest in somebody's process: what it says when that ends, or has no room for threads."""

import subprocess
import sys


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_module_that_lives_to_the_end_is_no_leak_to_report():
    done = run(
        "import ctypes, torch\nfrom fused_mlp import kernels\n"
        "fused = kernels.FusedMLP.from_torch(torch.nn.Sequential(torch.nn.Linear(4, 4)))\n"
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(fused))  # as something that is never cleared would hold it\n"
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
