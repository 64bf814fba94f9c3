# SPDX-License-Identifier: Apache-2.0
"""Imports a file in a child process that is confined by sandbox.py. The child reads, converts and checks the model and
writes it as a version directory, which the parent reads like any other: nothing that the child says is trusted."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, cast

from fused_mlp.models.importers.sandbox import confine
from fused_mlp.models.repository.drafts import draft_beside

if TYPE_CHECKING:
    from fused_mlp.models.importers.importer import Format

_GIB = 1 << 30
# A child may use this much memory, more for each core (stacks of threads), and a multiple of the file: weights of four
# bits become float64 in the check.
_BASE_MEMORY, _MEMORY_PER_CORE, _MEMORY_PER_BYTE = 4 * _GIB, 64 << 20, 24
_BASE_CPU_S, _CPU_S_PER_GIB = 600, 600
_OUT_OF_MEMORY = 12  # exit code of the child
_MAX_LINE = 1 << 16
_MAX_TEXT = 4000
_GRACE_S = 10.0
# The child's environment: what Python, the loader and threads of numeric libraries need, and no secrets of the parent.
_ENVIRONMENT = (
    "HOME", "LANG", "LC_", "LD_", "LOGNAME", "PATH", "PYTHON", "TZ", "USER",
    "GOMP_", "KMP_", "MKL_", "OMP_", "OPENBLAS_", "FUSED_MLP_CORES",
)  # fmt: skip


class Sandbox:
    """One child for one import. It starts at once and loads its modules while its caller does the same; `run` gives it
    the work. `missing` says, after that, which restrictions the kernel does not offer."""

    def __init__(self, source: Path, repository: Path, memory_gib: float | None = None) -> None:
        readable = _readable(source)
        size = sum(map(_bytes_of, readable))
        memory = _BASE_MEMORY + _MEMORY_PER_CORE * (os.cpu_count() or 1) + _MEMORY_PER_BYTE * size
        memory = min(memory, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        self._memory = memory if memory_gib is None else int(memory_gib * _GIB)
        self._cpu_s = _BASE_CPU_S + _CPU_S_PER_GIB * size // _GIB
        self._source = source
        self.missing = ""
        self._ending = contextlib.ExitStack()
        # In the repository, hidden from a scan: a folder for temporary files may be too small for a model. The next
        # import removes what one that was killed has left there.
        if repository.is_dir():
            self._draft = self._ending.enter_context(draft_beside(repository.absolute() / "import", 0o700))
        else:
            self._draft = Path(self._ending.enter_context(tempfile.TemporaryDirectory()))
        limits = [str(self._memory), str(self._cpu_s), str(self._draft), *map(str, readable)]
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the draft
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", __spec__.name, *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)},
            start_new_session=True,  # Ctrl-C is for the parent, which ends the child
        )

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout, self._stderr):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        self._ending.close()

    def run(self, options: dict[str, Any], progress: Callable[[str], None]) -> tuple[Path, Format]:
        """The directory that the child wrote and the format that it read; `options` are arguments of `import_model`.
        Raises ModelLoadError."""
        from fused_mlp.models.errors import ModelLoadError  # noqa: PLC0415 - while the child starts

        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._child.stdin as pipe:
            pickle.dump({**options, "repository": str(self._draft), "version": 1}, pipe)
        for kind, text in self._answers():
            match kind:
                case "progress":
                    progress(text)
                case "warning":
                    warnings.warn(text, stacklevel=3)
                case "missing":
                    self.missing = text
                case "error":
                    raise ModelLoadError(text)
                case "done":
                    self._child.kill()  # so that nothing changes while it is read
                    self._child.wait()
                    return Path(self._draft, options["name"], "1"), cast("Format", text)
        raise ModelLoadError(f"{self._source}: {self._why_it_ended()}")

    def _answers(self) -> Iterator[tuple[str, str]]:
        assert self._child.stdout is not None
        while line := self._child.stdout.readline(_MAX_LINE):
            try:
                kind, text = json.loads(line)
            except (ValueError, TypeError, RecursionError):
                return
            text = " ".join(str(text).split())[:_MAX_TEXT]
            yield str(kind), "".join(letter if letter.isprintable() else "?" for letter in text)

    def _why_it_ended(self) -> str:
        try:
            code = self._child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:  # it closed its output and went on
            code = -signal.SIGABRT
        self._stderr.seek(0)
        said = self._stderr.read(_MAX_LINE).decode(errors="replace")
        if code == -signal.SIGXCPU:
            return f"importing it takes more than {self._cpu_s} s of CPU time; sandbox=False imports it without a limit"
        if code in (_OUT_OF_MEMORY, -signal.SIGKILL) or "bad_alloc" in said or "llocate memory" in said:
            return (
                f"importing it needs more than {self._memory / _GIB:.3g} GiB; sandbox_memory=... allows more"
            )
        last = said.strip().splitlines()[-1:] or [f"exit code {code}"]
        return f"the process that read it ended: {last[0][:_MAX_TEXT]}"


def _readable(source: Path) -> list[Path]:
    """A file that may name others, which lie beside it, comes with its folder, and a folder with the targets of its
    links to files: caches of downloads are made of such links. A link to a folder would open all of it."""
    if source.is_dir():
        links = (each for each in source.iterdir() if each.is_symlink() and each.is_file())
        return [source, *(each.resolve() for each in links)]
    if source.name.endswith(".safetensors.index.json"):
        return [*_readable(source.parent), source.resolve()]
    return [source.parent, source.resolve()] if source.suffix == ".onnx" else [source.resolve()]


def _bytes_of(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files if each.is_file())


def _main(memory: str, cpu_s: str, draft: str, *readable: str) -> None:
    """The child."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer

    def say(kind: str, text: str) -> None:
        print(json.dumps([kind, text]), file=answers, flush=True)

    tempfile.tempdir = os.environ["TMPDIR"] = draft
    if missing := confine(map(Path, readable), Path(draft), int(memory), int(cpu_s)):
        say("missing", "; ".join(missing))
    from fused_mlp.models.errors import ModelLoadError, first_line  # noqa: PLC0415 - threads start after confine
    from fused_mlp.models.importers.importer import import_model  # noqa: PLC0415

    options = pickle.load(sys.stdin.buffer)  # of the parent
    try:
        warnings.showwarning = lambda message, *_: say("warning", str(message))
        imported = import_model(**options, progress=lambda text: say("progress", text))
    except Exception as error:
        causes = [error]
        while isinstance(cause := causes[-1].__cause__ or causes[-1].__context__, Exception):
            causes.append(cause)
        if any(isinstance(each, MemoryError) or "allocate memory" in str(each) for each in causes):
            os._exit(_OUT_OF_MEMORY)
        known = isinstance(error, ModelLoadError)
        text = f"{options['source']}: could not be read: {type(error).__name__}: {first_line(error)}"
        say("error", str(error) if known else text)
    else:
        say("done", imported.format)
    answers.flush()
    os._exit(0)  # without the shutdown of torch


if __name__ == "__main__":
    _main(*sys.argv[1:])
