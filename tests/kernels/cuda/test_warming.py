"""`fused-mlp warm`: what it compiles without a GPU is what a server finds, wherever the cache is mounted."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fused_mlp.models.repository import Repository
from fused_mlp.models.version_directory import save
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
from fused_mlp.models.repository import Repository
hits = []
triton.knobs.compilation.listener = lambda **named: hits.append(named["cache_hit"])
spec = Repository(sys.argv[1]).find("tiny").default.spec
for plan, options in list(plans_of(spec, find_architecture("sm_90"), False))[:int(sys.argv[2])]:
    assert compile_plan(plan, options, 90).asm["cubin"]
print(hits)
"""


def warm(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fused_mlp.service.cli", "warm", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def load(repository: Path, cache: Path, tmp: Path, most: int) -> str:
    environment = os.environ | {"TRITON_CACHE_DIR": str(cache), "TMPDIR": str(tmp)}
    command = [sys.executable, "-c", LOAD, str(repository), str(most)]
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
    done = warm("--arch", "sm_90", "--output", tmp_path / "filled", "--repository", repository)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == f"4 binaries for sm_90 of 1 models are in {tmp_path / 'filled'}\n"
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
