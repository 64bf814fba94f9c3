# SPDX-License-Identifier: Apache-2.0
"""Imports a model file of any supported format into a repository, as its next version. Owns recognising the
format; the reading is done by the module of each."""

from __future__ import annotations

import contextlib
import os
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from fused_mlp.extras import install_command
from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.acceptance import check_outputs
from fused_mlp.models.importers.checkpoints.safetensors import INDEX_SUFFIX
from fused_mlp.models.importers.checkpoints.state_dicts import read_state_dict
from fused_mlp.models.importers.from_checkpoint import from_safetensors, from_state_dict
from fused_mlp.models.importers.from_onnx import read_onnx
from fused_mlp.models.importers.isolation import Sandbox
from fused_mlp.models.program.spec import DEFAULT_SLOPE, Activation, Dtype, OutputActivation
from fused_mlp.models.repository.repository import Repository, check_name
from fused_mlp.models.repository.version_directory import JSON_NAME, load_version, save
from fused_mlp.models.weights.mlp import Mlp
from fused_mlp.models.weights.precision import reduce_precision
from fused_mlp.models.weights.quantization import Precision

Format = Literal["fused-mlp", "onnx", "state_dict", "safetensors", "pt2", "torchscript", "pickle", "python"]
# Formats that say everything themselves: activations and names are for checkpoints.
_WHOLE = ("fused-mlp", "onnx", "pt2", "torchscript", "pickle", "python")
# Modules whose weights may not tell the shape of a row.
_TAKES_ROW_SHAPE = ("torchscript", "pickle", "python")
_FOR_CHECKPOINTS = {
    "activation": None,
    "output_activation": "identity",
    "negative_slope": DEFAULT_SLOPE,
    "prefix": "",
    "name_map": None,
    "transposed": None,
}

_SUFFIXES: dict[str, Format] = {
    ".onnx": "onnx",
    ".pt2": "pt2",
    ".safetensors": "safetensors",
    ".pt": "state_dict",
    ".pth": "state_dict",
    ".bin": "state_dict",
    ".ckpt": "state_dict",
}


@dataclass(frozen=True)
class ImportedModel:
    """An imported model, and where it lies now."""

    name: str
    version: int
    path: Path
    format: Format
    mlp: Mlp


def import_model(
    source: str | os.PathLike[str],
    repository: str | os.PathLike[str],
    name: str,
    version: int | None = None,
    *,
    activation: Activation | None = None,
    output_activation: OutputActivation = "identity",
    negative_slope: float = DEFAULT_SLOPE,
    prefix: str = "",
    name_map: Mapping[str, str] | None = None,
    transposed: bool | None = None,
    dtype: Dtype | None = None,
    labels: Sequence[str] | None = None,
    description: str | None = None,
    example: Sequence[float] | None = None,
    state_dict: str | os.PathLike[str] | None = None,
    row_shape: Sequence[int] | None = None,
    unsafe_pickle: bool = False,
    unsafe_torchscript: bool = False,
    precision: Precision | None = None,
    calibration: NDArray[Any] | None = None,
    max_error: float | None = None,
    check: tuple[NDArray[Any], NDArray[Any]] | None = None,
    progress: Callable[[str], None] = lambda _: None,
    sandbox: bool | Sandbox = False,
    sandbox_memory: float | None = None,
) -> ImportedModel:
    """Read `source` and write it to `<repository>/<name>/<version>`, by default one above the highest there.

    `source` is a file, or Python code that makes a module: `path/model.py:factory`, `package.module:callable`. Weights
    of a file `state_dict` are loaded into that one. `row_shape` is the shape of one row, where the module's weights do
    not tell it. A pickled module is loaded only with `unsafe_pickle`, TorchScript only with `unsafe_torchscript`: both
    run whatever code is in the file.
    The arguments from `activation` to `transposed` are for checkpoints, which hold tensors alone; see
    `fused_mlp.from_safetensors`. `labels`, `description` and `example` replace what the source may have.

    `precision` keeps the weights in bfloat16 or int8; None: as in the source, which may be quantised. What that costs
    is measured over the rows of `calibration`, or random ones, and written beside the weights; `max_error` (5 %)
    bounds it (see `fused_mlp.models.weights.precision`). `dtype` makes floats of weights in fewer bits.

    `check`: rows and the outputs that the model must reproduce; one that does not is not written. `progress` is told
    what is done now.

    `sandbox`: read the file in a process of its own, which can reach neither the network nor other files and uses at
    most `sandbox_memory` GiB (None: 4 and 24 times the size of the file). Python code and pickled modules need the
    caller's environment and are read in this process."""
    options = dict(locals())
    check_name(name)
    if version is not None and version < 1:
        raise ModelLoadError(f"version: expected 1 or more, got {version}")
    path = Path(source)
    if sandbox and path.exists() and not unsafe_pickle:
        return _import_apart(**options)
    kind = detect_format(path)
    progress(f"reading {path.name}")
    kind = "pickle" if kind == "state_dict" and unsafe_pickle else kind
    _check_kind(path, kind, unsafe_torchscript, state_dict is not None)
    _check_options(path, kind, options)
    if kind in _WHOLE:
        if kind in ("fused-mlp", "onnx"):
            mlp = _load_whole(path, kind, dtype)
        else:
            weights = None if state_dict is None else Path(state_dict)
            mlp = _read_torch(str(source), kind, weights=weights, row_shape=row_shape, dtype=dtype)
    else:
        if activation is None:
            if kind == "state_dict":
                _check_is_state_dict(path)
            raise ModelLoadError(
                f"{path}: a {kind} file holds no activations; say which one follows the layers, such as "
                f"activation='relu', or import the module with it: model.py:factory with state_dict='{path.name}'"
            )
        read = from_safetensors if kind == "safetensors" else from_state_dict
        mlp = read(
            path,
            activation=activation,
            output_activation=output_activation,
            negative_slope=negative_slope,
            prefix=prefix,
            name_map=name_map,
            transposed=transposed,
            dtype=dtype,
        )
    mlp = mlp.annotated(
        labels=labels,
        description=description,
        example=example,
        source=mlp.source or f"imported from {path.name}" + (f", {prefix}" if prefix else ""),
    )
    try:
        if precision not in (None, "float32"):
            progress(f"measuring the error in {precision}")
        mlp = reduce_precision(mlp, precision, calibration, max_error)
        if check is not None:
            progress(f"checking {len(check[0])} rows")
            check_outputs(mlp, *check, max_error)
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from error
    progress(f"writing {name}")
    return _write(mlp, Path(repository), name, version, kind)


def _import_apart(
    *,
    sandbox: bool | Sandbox,
    sandbox_memory: float | None,
    progress: Callable[[str], None],
    repository: str | os.PathLike[str],
    version: int | None,
    **options: Any,
) -> ImportedModel:
    """As `import_model`; a child process reads the file."""
    root = Path(repository)
    given = contextlib.nullcontext(sandbox) if isinstance(sandbox, Sandbox) else None
    with given or Sandbox(Path(options["source"]), root, sandbox_memory) as child:
        draft, kind = child.run(options, progress)
        if given is None and child.missing:
            warnings.warn(f"the sandbox is incomplete: {child.missing}", stacklevel=3)
        return _write(load_version(draft), root, options["name"], version, kind)


def _check_kind(path: Path, kind: Format, unsafe_torchscript: bool, has_state_dict: bool) -> None:
    if kind == "torchscript" and not unsafe_torchscript:
        raise ModelLoadError(
            f"{path}: TorchScript runs its own code when it is read: export the module again, with torch.export.save "
            "or to ONNX, or import it with unsafe_torchscript=True if you trust the file"
        )
    if has_state_dict and kind != "python":
        raise ModelLoadError(
            f"{path}: a state_dict is loaded into a module that Python code makes, model.py:factory"
        )


def _check_options(path: Path, kind: Format, options: Mapping[str, Any]) -> None:
    """ModelLoadError for options that a file of this format would ignore."""
    defaults: dict[str, Any] = dict(_FOR_CHECKPOINTS) if kind in _WHOLE else {}
    if kind not in _TAKES_ROW_SHAPE:
        defaults["row_shape"] = None
    if unused := [name for name, default in defaults.items() if options[name] != default]:
        names = ", ".join(f"{name}=..." for name in unused)
        raise ModelLoadError(f"{path}: {names}: of no use here, a {kind} model says it itself")


def detect_format(path: Path) -> Format:  # noqa: PLR0911 - a table of formats
    """By the file name where that decides, else by what is in it."""
    if not path.exists() and ":" in path.name:
        return "python"
    if path.is_dir():
        if (path / JSON_NAME).is_file():
            return "fused-mlp"
        if any(path.glob("*.safetensors")):
            return "safetensors"
        raise ModelLoadError(f"{path}: expected {JSON_NAME} or safetensors files in this directory")
    if not path.is_file():
        raise ModelLoadError(f"{path}: no such file or directory")
    if path.name.endswith(INDEX_SUFFIX):
        return "safetensors"
    if _SUFFIXES.get(path.suffix) == "state_dict" and _holds_code(path):
        return "torchscript"
    if path.suffix in _SUFFIXES:
        return _SUFFIXES[path.suffix]
    with path.open("rb") as file:
        start = file.read(9)
    if start.startswith(b"PK\x03\x04"):  # torch.save writes zip archives
        return "state_dict"
    if start[8:9] == b"{":  # the length of a JSON header, then the header
        return "safetensors"
    raise ModelLoadError(
        f"{path}: not recognised; expected a version directory, .onnx, .safetensors, "
        f"*{INDEX_SUFFIX}, .pt2, .pt, .pth, .bin or .ckpt, or model.py:factory"
    )


def _holds_code(path: Path) -> bool:
    """TorchScript is saved under the same endings as a state_dict."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name or name.endswith("/constants.pkl") for name in archive.namelist())


def _check_is_state_dict(path: Path) -> None:
    """A pickled module is told from a state_dict before anything is asked about activations."""
    try:
        read_state_dict(path)
    except ModelLoadError as error:
        text = str(error)
        if "Python objects" in text:
            text += ", or import the whole module with unsafe_pickle=True if you trust the file"
        raise ModelLoadError(text) from error


def _read_torch(
    source: str, kind: Format, *, weights: Path | None, row_shape: Sequence[int] | None, dtype: Dtype | None
) -> Mlp:
    try:
        from fused_mlp.models.importers.torch import files  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModelLoadError(f"{source}: reading it needs torch: {install_command('torch')}") from None
    path = Path(source)
    if kind == "pt2":
        return files.read_exported(path, dtype=dtype)
    if kind == "torchscript":
        return files.read_script(path, row_shape=row_shape, dtype=dtype)
    if kind == "pickle":
        return files.read_pickled_module(path, row_shape=row_shape, dtype=dtype)
    return files.read_factory(source, state_dict=weights, row_shape=row_shape, dtype=dtype)


def _load_whole(path: Path, kind: Format, dtype: Dtype | None) -> Mlp:
    if kind == "onnx":
        return read_onnx(path, dtype)
    mlp = load_version(path)
    return mlp if dtype is None else mlp.rounded_to(dtype)


def _write(mlp: Mlp, root: Path, name: str, version: int | None, kind: Format) -> ImportedModel:
    """A version number is claimed by writing its directory: a concurrent import takes the next one."""
    number = version or _highest(root, name) + 1
    while True:
        target = root / name / str(number)
        try:
            save(mlp, target)
        except ModelLoadError:
            if version is None and target.exists():
                number += 1
                continue
            raise
        return ImportedModel(name, number, target, kind, mlp)


def _highest(root: Path, name: str) -> int:
    """The highest version number, broken versions included."""
    if not (root / name).is_dir():
        return 0
    return max((found.version for found in Repository(root).find(name).versions), default=0)
