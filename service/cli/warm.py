# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp warm`: fills a kernel cache for a GPU that need not be there."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from fused_mlp.kernels.cores import usable_cores
from fused_mlp.kernels.cuda.planning.reduced import dtype_on_gpu
from fused_mlp.kernels.cuda.warming import find_architecture
from fused_mlp.kernels.cuda.warming import warm as fill
from fused_mlp.models import MlpSpec, ModelLoadError
from fused_mlp.models.quantization import Precision
from fused_mlp.models.repository import Repository
from fused_mlp.models.version_directory import ModelFile
from fused_mlp.service.cli.failure import fail
from fused_mlp.service.settings.settings import SettingsError, load_settings


def specs_to_run(model_file: ModelFile, precision: Precision) -> list[MlpSpec]:
    """What a server may load a version as, whose policy says `precision`."""
    kept = bool(model_file.error and model_file.error.kept)
    dtypes = [dtype_on_gpu(model_file.spec, model_file.precision, kept=kept)]
    if model_file.precision == "float32":  # reduced at load, unless that costs too much
        dtypes.append(dtype_on_gpu(model_file.spec, precision, kept=False))
    return [model_file.spec.model_copy(update={"dtype": dtype}) for dtype in dict.fromkeys(dtypes)]


def command(
    arch: Annotated[
        str,
        typer.Option(help="The GPU's architecture, such as sm_90 (H100); docs/internals/cuda.md has a list."),
    ],
    output: Annotated[Path, typer.Option(help="The directory to fill: TRITON_CACHE_DIR of the server.")],
    repository: Annotated[
        Path | None, typer.Option(help="The models to compile for; default: FUSED_MLP_MODEL_REPOSITORY.")
    ] = None,
    tf32: Annotated[bool, typer.Option(help="For a server with FUSED_MLP_TF32=1.")] = False,
) -> None:
    """Compile the CUDA kernels of all models of a repository, so that a server starts without compiling.

    No GPU is needed, but the versions of triton and fused-mlp that will serve, and the server's FUSED_MLP_PRECISION and
    FUSED_MLP_POLICY where they change a model's precision. Mount the directory wherever you like, read-only if you
    like, and name it to the server as TRITON_CACHE_DIR.
    """
    if importlib.util.find_spec("triton") is None:
        fail("triton is not installed (it comes with CUDA builds of torch): pip install triton")
    try:
        architecture = find_architecture(arch)
    except ValueError as error:
        fail(f"--arch: {error}")
    try:
        settings = load_settings()
        root = repository or settings.model_repository
        found = Repository(root).scan()
    except (SettingsError, ModelLoadError) as error:
        fail(str(error))
    versions = [
        (version.model_file, settings.policy_of(model.name).precision)
        for model in found
        for version in model.usable
        if version.model_file is not None
    ]
    if not versions:
        fail(f"{root}: expected models, found none")
    specs = [spec for model_file, precision in versions for spec in specs_to_run(model_file, precision)]
    try:
        count = fill(
            specs,
            architecture,
            output,
            tf32=tf32,
            processes=usable_cores(),
            progress=lambda done, total: typer.echo(f"\r{done} of {total} binaries", nl=False, err=True),
        )
    except OSError as error:
        fail(f"--output {output}: {error.strerror or error}")
    typer.echo("", err=True)
    typer.echo(f"{count} binaries for {arch} of {len(versions)} models are in {output}")
