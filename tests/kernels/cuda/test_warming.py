# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp warm`: what it compiles without a GPU is what a server finds, wherever the cache is mounted."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from fused_mlp.kernels.cuda.kernel_cache import private_directory, unusable
from fused_mlp.models.repository.repository import Repository
from fused_mlp.models.repository.version_directory import save
from fused_mlp.models.weights.precision import to_precision
from fused_mlp.models.weights.quantization import Precision
from fused_mlp.service.cli.commands.warm import specs_to_run
from tests.kernels.cuda.random_models import make_mlp, make_spec

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="triton is not installed: pip install '.[cuda-check]'",
    ),
    pytest.mark.timeout(300),
]
# Compiles what a load on a GPU of sm_90 would, and says for each binary whether it was there.
LOAD = """
import sys, triton
from fused_mlp.kernels.cuda.device.compiling import compile_plan
from fused_mlp.kernels.cuda.warming import find_architecture, plans_of
from fused_mlp.models.repository.repository import Repository
hits = []
triton.knobs.compilation.listener = lambda **named: hits.append(named["cache_hit"])
spec = Repository(sys.argv[1]).find("tiny").default.spec
for plan, options in list(plans_of(spec, find_architecture("sm_90"), False))[:int(sys.argv[2])]:
    assert compile_plan(plan, options, 90).asm["cubin"]
print(hits)
"""
# Loads a kernel as on a GPU, up to the first call of a driver that has none of it.
START_DRIVER = """
import sys, torch
torch.cuda.is_available, torch.cuda.current_device = lambda: True, lambda: 0
from fused_mlp.kernels.cuda.device.compiling import compile_plan, load
from fused_mlp.kernels.cuda.warming import find_architecture, plans_of
from fused_mlp.models.repository.repository import Repository
spec = Repository(sys.argv[1]).find("tiny").default.spec
plan, options = next(plans_of(spec, find_architecture("sm_90"), False))
try:
    load(compile_plan(plan, options, 90))
except RuntimeError as error:
    print(error)
"""


def warm(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fused_mlp.service.cli", "warm", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def load(repository: Path, cache: Path, tmp: Path, most: int) -> str:
    return run(LOAD, repository, most, TRITON_CACHE_DIR=cache, TMPDIR=tmp)


def run(code: str, *arguments: object, **variables: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    save(make_mlp(make_spec((8, 3))), root / "tiny" / "1")
    assert Repository(root).find("tiny").default is not None
    return root


def test_warm_cache_is_found_wherever_it_is_mounted_also_read_only(repository: Path, tmp_path: Path) -> None:
    done = warm("--arch", "sm_90", "--output", tmp_path / "filled", "--repository", repository, "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {
        "architecture": "sm_90",
        "binaries": 6,
        "versions": 1,
        "directory": str(tmp_path / "filled"),
    }
    mounted = shutil.move(tmp_path / "filled", tmp_path / "mounted")
    for path in (mounted, *mounted.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert load(repository, mounted, tmp_path, 4) == "[True, True, True, True]"


def test_what_is_not_in_a_read_only_cache_is_compiled_elsewhere(repository: Path, tmp_path: Path) -> None:
    """A file in the way, since root may write to read-only directories."""
    (tmp_path / "cache").write_text("")
    for expected in (False, True):
        assert load(repository, tmp_path / "cache", tmp_path, 1) == str([expected])


@pytest.mark.parametrize(
    ("saved", "policy", "dtypes"),
    [
        ("float32", "float32", ["float32"]),
        ("int8", "float32", ["bfloat16"]),
        ("bfloat16", "int8", ["bfloat16"]),
        ("float32", "int8", ["float32", "bfloat16"]),  # which stays in float32 if int8 costs too much
    ],
)
def test_versions_are_compiled_as_the_server_runs_them(
    tmp_path: Path, saved: Precision, policy: Precision, dtypes: list[str]
) -> None:
    save(to_precision(make_mlp(make_spec((8, 3))), saved), tmp_path / "tiny" / "1")
    default = Repository(tmp_path).find("tiny").default
    assert default is not None
    assert default.model_file is not None
    assert [spec.dtype for spec in specs_to_run(default.model_file, policy)] == dtypes


@pytest.fixture
def empty_driver(tmp_path: Path) -> Path:
    """A directory with a libcuda.so.1 whose functions all fail."""
    compiler, triton = shutil.which("cc"), importlib.util.find_spec("triton")
    assert triton is not None
    assert triton.origin is not None
    if compiler is None:
        pytest.skip("needs a C compiler, as Triton does")
    used = (Path(triton.origin).parent / "backends" / "nvidia" / "driver.c").read_text()
    names = set(re.findall(r"\b(cu[A-Z]\w+)\(", used)) - {"cuGetErrorString"}
    source = tmp_path / "driver.c"
    source.write_text(
        'int cuGetErrorString(int code, const char** text) { *text = "no device here"; return 0; }\n'
        + "".join(f"int {name}() {{ return 100; }}\n" for name in sorted(names))
    )
    (tmp_path / "driver").mkdir()
    library = tmp_path / "driver" / "libcuda.so.1"
    subprocess.run([compiler, "-w", "-shared", "-fPIC", "-o", library, source], check=True)
    return library.parent


def test_library_that_triton_builds_for_itself_is_kept_elsewhere_too(
    repository: Path, tmp_path: Path, empty_driver: Path
) -> None:
    (tmp_path / "cache").write_text("")
    said = run(
        START_DRIVER,
        repository,
        TRITON_CACHE_DIR=tmp_path / "cache",
        TMPDIR=tmp_path,
        TRITON_LIBCUDA_PATH=empty_driver,
        LD_LIBRARY_PATH=empty_driver,
    )
    assert "no device here" in said
    assert list(tmp_path.glob("fused-mlp-triton-*/*/cuda_utils*.so"))


def test_directory_of_another_is_not_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is loaded from it would run as this user."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    usual = tmp_path / f"fused-mlp-triton-{os.getuid()}"
    choose = private_directory.__wrapped__
    assert choose() == usual
    assert choose() == usual
    assert usual.stat().st_mode & 0o777 == 0o700
    usual.chmod(0o777)
    assert choose() != usual
    usual.rmdir()
    (tmp_path / "theirs").mkdir(mode=0o700)
    usual.symlink_to(tmp_path / "theirs")
    assert choose() != usual
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    (tmp_path / "fused-mlp-triton-4711").mkdir(mode=0o700)
    assert choose() != tmp_path / "fused-mlp-triton-4711"


def test_temporary_directory_matters_where_the_cache_is_read_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("")  # in the way
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache" / "triton"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    noexec = [tmp_path / "temporary"]
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC if path in noexec else 0)
    )
    assert unusable() == (
        f"Triton's cache {tmp_path}/cache/triton cannot be written to, and {tmp_path}/temporary is on a file system "
        "mounted noexec: set TRITON_CACHE_DIR or TMPDIR to another directory"
    )
    noexec[:] = [tmp_path / "cache"]
    assert unusable() is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--arch", "sm_75"),
            "--arch: expected one of sm_80, sm_86, sm_89, sm_90, sm_100, sm_120, got 'sm_75'",
        ),
        (("--arch", "sm_90", "--repository", "/nowhere"), "/nowhere"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = warm(*arguments, "--output", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_mistake_in_a_setting_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_DEVICE", "int4")
    done = warm("--arch", "sm_90", "--output", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: FUSED_MLP_DEVICE='int4': ")
    assert done.stderr.count("\n") == 1
