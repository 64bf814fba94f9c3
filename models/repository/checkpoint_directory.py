# SPDX-License-Identifier: Apache-2.0
"""A version directory that holds a checkpoint as others write it (Hugging Face: `model.safetensors`, or shards and
their index) beside a small `model.json` that says what a checkpoint does not: {"format": "safetensors/1", "activation":
"silu", "prefix": "model.layers.0.mlp"}. The fields are arguments of `from_safetensors`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.program.spec import DEFAULT_SLOPE, Activation, Dtype, OutputActivation
from fused_mlp.models.weights.mlp import Mlp

CHECKPOINT_FORMAT = "safetensors/1"


class CheckpointFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["safetensors/1"]
    activation: Activation
    output_activation: OutputActivation = "identity"
    negative_slope: float = DEFAULT_SLOPE
    prefix: str = ""
    name_map: dict[str, str] | None = None
    transposed: bool | None = None
    dtype: Dtype | None = None
    labels: tuple[str, ...] | None = None
    description: str | None = None
    example: tuple[float, ...] | None = None


def read_checkpoint_directory(directory: Path, description: Any) -> Mlp:
    """`description`: what model.json holds. Raises ModelLoadError."""
    from fused_mlp.models.importers.from_checkpoint import from_safetensors  # noqa: PLC0415 - most versions are ours

    try:
        file = CheckpointFile.model_validate(description)
    except ValidationError as error:
        raise ModelLoadError.from_validation(error, str(directory / "model.json")) from error
    words = file.model_dump(include={"labels", "description", "example"})
    reading = file.model_dump(exclude={"format", *words})
    return from_safetensors(directory, **reading).annotated(**words, source="a safetensors checkpoint")


def checkpoint_files(directory: Path) -> list[Path]:
    """The safetensors file of a checkpoint, or its shards."""
    from fused_mlp.models.importers.checkpoints.safetensors import SafetensorsCheckpoint  # noqa: PLC0415

    return SafetensorsCheckpoint(directory).files
