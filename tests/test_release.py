# SPDX-License-Identifier: Apache-2.0
"""What `make lint` and `make release-check` ask of a commit: license lines, and packages that match the tag."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small project with the two scripts, all committed, and packages of version 1.2.3 in dist/."""
    (tmp_path / "scripts").mkdir()
    for name in ("license-headers", "release-check"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts" / name)
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n## 1.2.3 - 2026-11-17\n\n* New.\n"
    )
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "compose.yaml").write_text("image: fused-mlp:1.2.3-torch\n")
    (tmp_path / "deploy" / "next").mkdir()
    (tmp_path / "deploy" / "next" / "kustomization.yaml").write_text("- {name: fused-mlp, newTag: 1.3.0}\n")
    (tmp_path / ".gitignore").write_text("dist/\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    dist = tmp_path / "dist"
    dist.mkdir()
    with zipfile.ZipFile(dist / "fused_mlp-1.2.3-cp311-cp311-linux.whl", "w") as wheel:
        wheel.writestr("fused_mlp-1.2.3.dist-info/licenses/LICENSE", "")
    with tarfile.open(dist / "fused_mlp-1.2.3.tar.gz", "w:gz") as sdist:
        sdist.add(ROOT / "LICENSE", "fused_mlp-1.2.3/LICENSE")
    return tmp_path


def git(repository: Path, *arguments: str) -> None:
    names = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    subprocess.run(["git", *names, *arguments], cwd=repository, check=True)


def commit(repository: Path) -> None:
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "a state")


def run(repository: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"scripts/{script}", *arguments]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)


def failed(repository: Path) -> list[str]:
    """The checks of release-check that fail, but for the one that needs twine and a real package."""
    lines = run(repository, "release-check").stdout.splitlines()
    return [line for line in lines if line.startswith("FAILED") and "twine" not in line]


def test_a_file_without_the_license_line_is_named_and_gets_it_below_the_shebang(repository: Path):
    program = repository / "program.py"
    program.write_text("#!/usr/bin/env python3\nprint()\n")
    (repository / "kernel.cpp").write_text("int main() {}\n")
    commit(repository)
    refused = run(repository, "license-headers")
    assert refused.returncode == 1
    assert [line.partition(":")[0] for line in refused.stderr.splitlines()] == ["kernel.cpp", "program.py"]
    run(repository, "license-headers", "--write")
    assert program.read_text().splitlines()[:2] == [
        "#!/usr/bin/env python3",
        "# SPDX-License-Identifier: Apache-2.0",
    ]
    assert (repository / "kernel.cpp").read_text().startswith("// SPDX")
    assert run(repository, "license-headers").returncode == 0


def test_a_tagged_commit_with_its_packages_and_its_changelog_may_be_released(repository: Path):
    git(repository, "tag", "v1.2.3")
    assert run(repository, "release-check").stdout.startswith("release 1.2.3\n")
    assert failed(repository) == []


def test_what_does_not_match_the_tag_is_named(repository: Path):
    (repository / "CHANGELOG.md").write_text("## [Unreleased]\n\n* Not told under a version.\n")
    (repository / "examples").mkdir()
    (repository / "examples" / "own.yaml").write_text("- {name: fused-mlp, newName: a/b, newTag: 1.2.4}\n")
    commit(repository)
    git(repository, "tag", "v1.3.0")
    assert failed(repository) == [
        "FAILED  the changelog has 1.3.0, with its date: no line '## 1.3.0 - YYYY-MM-DD'",
        "FAILED  nothing is left under [Unreleased]: * Not told under a version.",
        "FAILED  deploy/ and examples/ name one version of the image: they name 1.2.3, 1.2.4",
        "FAILED  fused_mlp-1.2.3-cp311-cp311-linux.whl: its version: expected 1.3.0",
        "FAILED  fused_mlp-1.2.3.tar.gz: its version: expected 1.3.0",
    ]


def test_uncommitted_files_and_strays_in_a_package_are_named(repository: Path):
    git(repository, "tag", "v1.2.3")
    (repository / "new.txt").write_text("")
    with zipfile.ZipFile(next((repository / "dist").glob("*.whl")), "a") as wheel:
        wheel.writestr("tests/test_it.py", "")
    assert failed(repository) == [
        "FAILED  nothing is uncommitted: ?? new.txt",
        "FAILED  fused_mlp-1.2.3-cp311-cp311-linux.whl: nothing but the package: it holds tests/test_it.py",
    ]
