# SPDX-License-Identifier: Apache-2.0
"""A version directory: `model.json` (spec, example, source) and `model.safetensors`, or a checkpoint of another tool
(checkpoint_directory.py). Owns reading, checking and writing the files; knows nothing of where a repository keeps
them."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.program.spec import MlpSpec
from fused_mlp.models.program.steps import (
    Affine,
    Combine,
    Concat,
    Elementwise,
    Gated,
    Linear,
    Norm,
    Slice,
    Softmax,
)
from fused_mlp.models.repository.checkpoint_directory import (
    CHECKPOINT_FORMAT,
    checkpoint_files,
    read_checkpoint_directory,
)
from fused_mlp.models.repository.checksums import sum_line, sum_path
from fused_mlp.models.weights.dtypes import Array
from fused_mlp.models.weights.mlp import Example, Mlp, check_example, check_shapes
from fused_mlp.models.weights.precision_error import PrecisionError
from fused_mlp.models.weights.quantization import Int8Matrix, Precision, ReducedMatrix
from fused_mlp.models.weights.safetensors_file import (
    UNREADABLE,
    StoredTensor,
    read_header,
    read_tensors,
    write_tensors,
)

JSON_NAME = "model.json"
WEIGHTS_NAME = "model.safetensors"
# A spec with 4096 steps, an example of a million values and long labels stays below this; a larger file is not a
# model description.
MAX_JSON_BYTES = 64 << 20
MAX_CHECKPOINT_JSON_BYTES = 1 << 20
SCALE = "_scale"  # comes after the name of an int8 matrix in that of its scales
SAFETENSORS_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class ModelFile(BaseModel):
    """The content of `model.json`, or of a checkpoint beside it. Format 1 wrote a chain as a list of layers,
    format 2 writes any program as its steps, format 3 is the same with weights in fewer bits, format 4 has several
    inputs or steps that format 3 does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    format: Literal["fused-mlp/1", "fused-mlp/2", "fused-mlp/3", "fused-mlp/4", "safetensors/1"]
    spec: MlpSpec
    example: Annotated[tuple[FiniteFloat, ...], Field(min_length=1, strict=False, fail_fast=True)] | None = (
        None
    )
    # In its place, of a spec with named inputs.
    example_inputs: (
        dict[str, Annotated[tuple[bool | int | FiniteFloat | str, ...], Field(strict=False, fail_fast=True)]]
        | None
    ) = None
    source: str = ""
    precision: Precision = "float32"
    error: PrecisionError | None = None

    @property
    def example_row(self) -> Example | None:
        return self.example or self.example_inputs

    @model_validator(mode="before")
    @classmethod
    def _check_format(cls, given: Any) -> Any:
        match given:
            case {"format": "fused-mlp/1", "spec": {"steps": _}}:
                raise ValueError("spec.steps: format 1 has layers; steps are of format fused-mlp/2")
            case {"format": "fused-mlp/2" | "fused-mlp/3" | "fused-mlp/4" as name, "spec": {"layers": _}}:
                number = name.removeprefix("fused-mlp/")
                raise ValueError(f"spec.layers: format {number} has steps; layers are of format fused-mlp/1")
        return given

    @model_validator(mode="after")
    def _check_precision(self) -> ModelFile:
        if self.precision == "float32":
            if self.error is not None:
                raise ValueError("error: of no version whose precision is float32")
        elif self.format not in ("fused-mlp/3", "fused-mlp/4") or self.spec.dtype != "float32":
            raise ValueError(
                f"precision: {self.precision} weights are of format fused-mlp/3 with spec.dtype float32, got "
                f"{self.format} with {self.spec.dtype}"
            )
        steps = {step.name for step in self.spec.steps}
        for name in self.error.kept if self.error is not None else ():
            if name not in steps:
                raise ValueError(f"error.kept: expected names of steps, got {name[:200]!r}")
        return self


def load_version(directory: Path, model_file: ModelFile | None = None) -> Mlp:
    """The model in a version directory. `model_file`: what its model.json says, if that is known already."""
    if model_file is None:
        model_file = read_model_file(directory)
    if model_file.format == CHECKPOINT_FORMAT:
        return read_checkpoint_directory(directory, _read_json(directory / JSON_NAME))
    stored = inspect_weights(directory, model_file)
    weights = directory / WEIGHTS_NAME
    try:
        tables = model_file.spec.tables
        tensors = read_tensors(stored, weights, tables | {f"{name}{SCALE}" for name in tables})
        reduced = _take_reduced(model_file, tensors)
        return Mlp(
            model_file.spec,
            tensors,
            example=model_file.example_row,
            source=model_file.source,
            reduced=reduced,
            error=model_file.error,
        )
    except UNREADABLE as error:
        raise ModelLoadError(f"{weights}: not readable: {first_line(error)}") from error
    except ModelLoadError as error:
        raise ModelLoadError(f"{weights}: {error}") from error


def inspect_version(directory: Path) -> ModelFile:
    """Check everything that can be checked without reading the weights: `model.json`, and the names, shapes,
    dtypes and length that the header of `model.safetensors` declares."""
    model_file = read_model_file(directory)
    if model_file.format != CHECKPOINT_FORMAT:
        inspect_weights(directory, model_file)
    return model_file


def weight_files(directory: Path, model_file: ModelFile) -> list[Path]:
    """The files that the weights of a version are read from."""
    if model_file.format == CHECKPOINT_FORMAT:
        return checkpoint_files(directory)
    return [directory / WEIGHTS_NAME]


def inspect_weights(directory: Path, model_file: ModelFile) -> dict[str, StoredTensor]:
    """Where the tensors are, once the header of `model.safetensors` agrees with `model.json`."""
    weights = directory / WEIGHTS_NAME
    if not weights.is_file():
        raise ModelLoadError(f"{weights}: no such file")
    try:
        stored = read_header(weights)
    except UNREADABLE as error:
        raise ModelLoadError(f"{weights}: not a readable safetensors file: {first_line(error)}") from error
    scales = {f"{name}{SCALE}" for name, tensor in stored.items() if tensor.dtype == "I8"}
    try:
        shapes = {name: tensor.shape for name, tensor in stored.items() if name not in scales}
        check_shapes(model_file.spec, shapes)
        _check_scales(scales, stored)
    except ModelLoadError as error:
        raise ModelLoadError(f"{weights}: {error}") from error
    expected = SAFETENSORS_DTYPES[model_file.spec.dtype]
    matrix = {"int8": "I8", "bfloat16": "BF16"}.get(model_file.precision, expected)
    for name, tensor in stored.items():
        said, in_words = expected, str(model_file.spec.dtype)
        if len(tensor.shape) == 2 and matrix != expected:
            said, in_words = matrix, model_file.precision
        # Matrices for which fewer bits would cost too much stay as they were.
        if tensor.dtype not in (said, expected):
            raise ModelLoadError(
                f"{weights}: tensor {name!r} is {tensor.dtype}, but {JSON_NAME} says {said} ({in_words})"
            )
    if model_file.precision != "float32" and all(tensor.dtype != matrix for tensor in stored.values()):
        raise ModelLoadError(f"{weights}: no tensor is {matrix}, but {JSON_NAME} says {model_file.precision}")
    return stored


def _check_scales(names: Collection[str], stored: Mapping[str, StoredTensor]) -> None:
    for name in names:
        matrix = name.removesuffix(SCALE)
        if name not in stored:
            raise ModelLoadError(f"tensor {matrix!r} is I8, but its scales {name!r} are missing")
        expected = (stored[matrix].shape[0],)
        if stored[name].shape != expected:
            raise ModelLoadError(f"tensor {name!r}: expected shape {expected}, got {stored[name].shape}")


def _take_reduced(model_file: ModelFile, tensors: dict[str, Array]) -> dict[str, ReducedMatrix]:
    """The matrices in fewer bits, which are taken out of `tensors`."""
    reduced: dict[str, ReducedMatrix] = {}
    if model_file.precision == "int8":
        for name in [name for name, tensor in tensors.items() if tensor.dtype == np.int8]:
            reduced[name] = Int8Matrix(tensors.pop(name), tensors.pop(f"{name}{SCALE}"))
    elif model_file.precision == "bfloat16" and model_file.spec.dtype != "bfloat16":
        for name in [name for name, tensor in tensors.items() if tensor.dtype.name == "bfloat16"]:
            reduced[name] = tensors.pop(name)
    return reduced


def stored_tensors(mlp: Mlp) -> dict[str, Array]:
    """As in `model.safetensors`: matrices in fewer bits as they are kept, with their scales."""
    tensors = mlp.unreduced()
    for name, matrix in mlp.reduced.items():
        if isinstance(matrix, Int8Matrix):
            tensors[name], tensors[f"{name}{SCALE}"] = matrix.values, matrix.scales
        else:
            tensors[name] = matrix
    return tensors


def save(mlp: Mlp, path: str | os.PathLike[str]) -> None:
    """Write a model as a version directory, which `load` and a server read.

    All files appear at once or not at all, so that a server that follows the repository never sees half a version.

    Args:
        mlp: The model.
        path: Where, such as `repository/my-model/1`. It must not exist yet, or be empty: a saved version never
            changes.

    Raises:
        ModelLoadError: There is something at `path` already.

    Examples:
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
        >>> fused_mlp.save(fused_mlp.from_torch(net), "repository/net/1")
        >>> fused_mlp.load("repository/net/1").spec.summary()
        '8-32-3 relu'
    """
    from fused_mlp.models.repository.drafts import draft_beside  # noqa: PLC0415 - shutil brings archive formats, unused by a server

    target = Path(path)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ModelLoadError(f"{target}: exists already; a saved version never changes, choose another path")
    model_file = ModelFile(
        format=_format(mlp),
        spec=mlp.spec,
        example=mlp.example if isinstance(mlp.example, tuple) else None,
        example_inputs=mlp.example if isinstance(mlp.example, dict) else None,
        source=mlp.source,
        precision=mlp.precision if mlp.reduced else "float32",
        error=mlp.error,
    )
    try:
        with draft_beside(target) as draft:
            description = model_file.model_dump_json(indent=2, exclude_defaults=True) + "\n"
            _write(draft / JSON_NAME, description.encode())
            with (draft / WEIGHTS_NAME).open("xb") as file:
                write_tensors(file, stored_tensors(mlp), mlp.spec.tables)
                file.flush()
                os.fsync(file.fileno())
            _write(sum_path(draft / WEIGHTS_NAME), sum_line(draft / WEIGHTS_NAME))
            _sync_directory(draft)
            draft.rename(target)
            _sync_directory(target.parent)
    except OSError as error:
        raise ModelLoadError(f"{target}: could not be written: {error.strerror or error}") from error


# The steps of format 2.
_FIRST_STEPS = (Linear, Gated, Elementwise, Norm, Affine, Softmax, Combine, Concat, Slice)


def _format(mlp: Mlp) -> Literal["fused-mlp/2", "fused-mlp/3", "fused-mlp/4"]:
    """The oldest that holds the model, so that older releases read what they can serve."""
    if mlp.spec.inputs is not None or not all(isinstance(step, _FIRST_STEPS) for step in mlp.spec.steps):
        return "fused-mlp/4"
    return "fused-mlp/3" if mlp.reduced else "fused-mlp/2"


def read_model_file(directory: Path) -> ModelFile:
    """Reads and checks `model.json`."""
    path = directory / JSON_NAME
    text = _read_text(path)
    if len(text) < MAX_CHECKPOINT_JSON_BYTES and CHECKPOINT_FORMAT.encode() in text:
        content = _read_json(path)  # the name may also stand in a text of a model of ours
        if isinstance(content, dict) and content.get("format") == CHECKPOINT_FORMAT:
            mlp = read_checkpoint_directory(directory, content)
            return ModelFile.model_construct(
                format="safetensors/1", spec=mlp.spec, example=mlp.example, source=mlp.source
            )
    try:
        model_file = ModelFile.model_validate_json(text)
    except ValueError as error:
        raise ModelLoadError.from_validation(error, str(path)) from error
    if model_file.example_row is not None:
        try:
            check_example(model_file.spec, model_file.example_row)
        except ModelLoadError as error:
            raise ModelLoadError(f"{path}: {error}") from None
    return model_file


def _read_text(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelLoadError(f"{path}: larger than {MAX_JSON_BYTES >> 20} MiB, not a model description")
        return path.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"{path}: {(error.strerror or str(error)).lower()}") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not JSON: {first_line(error)}") from error


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut, as fsync of a file does not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
