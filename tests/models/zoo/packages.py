# SPDX-License-Identifier: Apache-2.0
"""Packages whose modules are in the zoo and in docs/models: installed once, into a venv of their own that borrows ours,
so that torch and numpy are never installed again. `python -m tests.models.zoo.packages` does it ahead of a test run and
prints the folder to import them from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from deploy.cluster.packages import CACHE, locked

PACKAGES = (
    "transformers>=5",
    "rtdl_revisiting_models",
    "rtdl_num_embeddings",
    "stable-baselines3>=2.7",
    "skl2onnx",
    "onnxscript",
    "onnxruntime",
    "pandas",
    "keras>=3",
    "deepctr-torch",
    "torch-rechub",
    "torchfm",
    "tabm",
)
# Without what they depend on: much of it is large, clashes with others here and has nothing to do with their models.
# What these import besides is here too, or a stand-in.
ALONE = (
    "pytorch-widedeep", "einops", "wrapt", "torchmetrics", "lightning-utilities", "fastai", "fastcore", "fasttransform",
    "plum-dispatch", "beartype", "fastprogress", "pillow", "pytorch_tabular", "pytorch-lightning", "omegaconf",
    "antlr4-python3-runtime", "scikit-base", "pytorch-tabnet", "matplotlib", "cycler", "kiwisolver", "pyparsing",
    "contourpy", "fonttools",
)  # fmt: skip
STAND_INS = (
    "spacy", "gensim", "torchvision", "transformers", "fasthtml", "fastdownload", "pyarrow", "IPython", "cv2",
)  # fmt: skip
_FOLDER = CACHE / "zoo"


@cache
def install_packages() -> str | None:
    """Makes them importable, after everything of our own; says in words why it could not."""
    with locked("zoo"):
        if (reason := _install()) is not None:
            return reason
    if str(site_packages()) not in sys.path:
        sys.path.append(str(site_packages()))
    return None


def site_packages() -> Path:
    """The folder that the packages are imported from, once they are installed."""
    (found,) = _FOLDER.glob("lib/python*/site-packages")
    return found


def _install() -> str | None:
    done = _FOLDER / ".installed"
    wanted = "\n".join((*PACKAGES, *ALONE))
    if done.exists() and done.read_text() == wanted:
        return None
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(_FOLDER)], check=True)
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site_packages() / "ours.pth").write_text("\n".join(ours))
    constraints = _FOLDER / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version(name)}\n" for name in ("torch", "numpy")))
    pip = [str(_FOLDER / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for options in (["-c", str(constraints), *PACKAGES], ["--no-deps", *ALONE]):
        installed = subprocess.run([*pip, *options], capture_output=True, text=True)
        if installed.returncode:
            lines = installed.stderr.strip().splitlines() or ["no reason given"]
            return f"pip could not install {', '.join(options)}: {lines[-1]}"
    done.write_text(wanted)
    return None


@contextmanager
def stand_ins() -> Iterator[None]:
    """While packages are imported, whose models use none of it."""

    def taken_out() -> dict[str, ModuleType]:
        names = [name for name in sys.modules if name.partition(".")[0] in STAND_INS]
        return {name: sys.modules.pop(name) for name in names}

    real, finder = taken_out(), _StandIns()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        taken_out()
        sys.modules.update(real)


class _StandIns(MetaPathFinder, Loader):
    """Empty modules for packages that are imported and never used: any name is a class of theirs."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in STAND_INS else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _StandIn(ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - as modules have it
    __version__ = "1.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


if __name__ == "__main__":
    sys.exit(install_packages() or print(site_packages()))
