"""The limits of this machine, measured: peak multiply-adds, and reading the bytes of a model's weights."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path


class MachineProbe:
    """Compiles the probe once per process; needs a C++ compiler, as torch.compile does."""

    def __init__(self) -> None:
        compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
        self._folder = tempfile.TemporaryDirectory()
        library = Path(self._folder.name) / "probe.so"
        source = Path(__file__).with_name("machine_probe.cpp")
        flags = ["-std=c++20", "-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
        subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
        self._library = ctypes.CDLL(str(library))
        self._library.probe_flops.restype = ctypes.c_double
        self._library.probe_read.restype = ctypes.c_double
        self._library.probe_read.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
        self._library.probe_allocate.restype = ctypes.c_void_p
        self._library.probe_allocate.argtypes = [ctypes.c_size_t]
        self._library.probe_free.argtypes = [ctypes.c_void_p]

    def flops(self, threads: int, samples: int = 5) -> float:
        """Floating point operations per second, the best of some samples."""
        return max(self._library.probe_flops(threads) for _ in range(samples))

    def read_seconds(self, size: int, threads: int, samples: int = 5) -> float:
        """To read `size` bytes once, the best of some samples."""
        data = self._library.probe_allocate(size)
        repeats = max(1, (4 << 20) // size)
        try:
            return min(self._library.probe_read(data, size, threads, repeats) for _ in range(samples))
        finally:
            self._library.probe_free(data)


def describe_machine() -> dict[str, object]:
    """What a reader needs to know of the machine that made a result."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def describe_commit() -> str:
    """Of the code that made a result; says `dirty` when the tree was not clean."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"
