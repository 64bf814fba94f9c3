# SPDX-License-Identifier: Apache-2.0
"""`fused_mlp.load`: one entry for every file that says on its own what model it holds."""

from __future__ import annotations

import os
from pathlib import Path

from fused_mlp.extras import install_command
from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.repository.version_directory import JSON_NAME, load_version
from fused_mlp.models.weights.mlp import Mlp

# Formats without activations, by extension, and what reads them when told the rest.
CHECKPOINTS = {
    ".pt": "fused_mlp.from_state_dict",
    ".pth": "fused_mlp.from_state_dict",
    ".bin": "fused_mlp.from_state_dict",
    ".safetensors": "fused_mlp.from_safetensors",
}


def load(path: str | os.PathLike[str]) -> Mlp:
    """Load a model from a file or folder that says by itself what it computes.

    Args:
        path: A version directory (or the `model.json` in it), an ONNX file, or a `.pt2` of `torch.export`.
            Checkpoints hold tensors but no activations: read those with `from_state_dict` or `from_safetensors`.

    Returns:
        The model.

    Raises:
        ModelLoadError: There is no such file, or no model in it; the text is one line that says what was expected.
    """
    path = Path(path)
    if not path.exists():
        raise ModelLoadError(f"{path}: no such file or directory")
    if path.is_dir():
        return _load_directory(path)
    if path.name == JSON_NAME:
        return load_version(path.parent)
    if path.suffix == ".onnx":
        from fused_mlp.models.importers.from_onnx import from_onnx  # noqa: PLC0415 - most servers read no ONNX

        return from_onnx(path)
    if path.suffix == ".pt2":
        try:
            from fused_mlp.models.importers.torch.files import read_exported  # noqa: PLC0415 - brings torch
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModelLoadError(f"{path}: reading it needs torch: {install_command('torch')}") from None
        return read_exported(path)
    if path.suffix in CHECKPOINTS:
        raise ModelLoadError(
            f"{path}: a checkpoint says nothing of activations; read it with {CHECKPOINTS[path.suffix]}"
        )
    raise ModelLoadError(
        f"{path}: expected a version directory with {JSON_NAME} in it, an .onnx or a .pt2 file"
    )


def _load_directory(path: Path) -> Mlp:
    if not (path / JSON_NAME).exists():
        versions = [int(entry.name) for entry in path.iterdir() if entry.is_dir() and entry.name.isdecimal()]
        if versions:
            newest = path / str(max(versions))
            raise ModelLoadError(f"{path}: a model's directory; load one of its versions, such as {newest}")
    return load_version(path)
