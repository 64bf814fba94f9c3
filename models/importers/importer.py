"""Imports a model file of any supported format into a repository, as its next version. Owns recognising the
format; the reading is done by the module of each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.from_checkpoint import from_safetensors, from_state_dict
from fused_mlp.models.importers.from_onnx import from_onnx
from fused_mlp.models.importers.safetensors_checkpoint import INDEX_SUFFIX
from fused_mlp.models.repository import Repository, check_name
from fused_mlp.models.spec import DEFAULT_SLOPE, Activation, Dtype, OutputActivation
from fused_mlp.models.version_directory import JSON_NAME, load_version, save
from fused_mlp.models.weights import Mlp

Format = Literal["fused-mlp", "onnx", "state_dict", "safetensors"]

_SUFFIXES: dict[str, Format] = {
    ".onnx": "onnx",
    ".safetensors": "safetensors",
    ".pt": "state_dict",
    ".pth": "state_dict",
    ".bin": "state_dict",
    ".ckpt": "state_dict",
}


@dataclass(frozen=True)
class ImportedModel:
    """What was imported, and where it lies now."""

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
) -> ImportedModel:
    """Read `source` and write it to `<repository>/<name>/<version>`, by default one above the highest there.

    The arguments from `activation` to `transposed` are for checkpoints, which hold tensors alone; see
    `fused_mlp.from_safetensors`. `labels`, `description` and `example` replace what the source may have."""
    check_name(name)
    if version is not None and version < 1:
        raise ModelLoadError(f"version: expected 1 or more, got {version}")
    path = Path(source)
    kind = detect_format(path)
    if kind in ("fused-mlp", "onnx"):
        given = {
            "activation": activation,
            "output_activation": output_activation,
            "prefix": prefix,
            "name_map": name_map,
            "transposed": transposed,
        }
        if unused := [key for key, value in given.items() if value not in (None, "", "identity")]:
            raise ModelLoadError(
                f"{path}: {', '.join(unused)}: of no use here, a {kind} model says it itself"
            )
        mlp = _load_whole(path, kind, dtype)
    else:
        if activation is None:
            raise ModelLoadError(
                f"{path}: a {kind} file holds no activations; say which one follows the layers, such as relu"
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
    return _write(mlp, Path(repository), name, version, kind)


def detect_format(path: Path) -> Format:
    """By the file name where that decides, else by the first bytes."""
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
        f"*{INDEX_SUFFIX}, .pt, .pth, .bin or .ckpt"
    )


def _load_whole(path: Path, kind: Format, dtype: Dtype | None) -> Mlp:
    if kind == "onnx":
        return from_onnx(path, dtype=dtype)
    mlp = load_version(path)
    if dtype is None or dtype == mlp.spec.dtype:
        return mlp
    spec = mlp.spec.model_copy(update={"dtype": dtype})
    return Mlp(spec, mlp.layers, example=mlp.example, source=mlp.source)


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
