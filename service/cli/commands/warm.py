# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp warm`: fills a kernel cache for a GPU that need not be present."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

from fused_mlp.kernels.cores import usable_cores
from fused_mlp.kernels.cuda.planning.plans import dtype_on_gpu
from fused_mlp.kernels.cuda.warming import find_architecture
from fused_mlp.kernels.cuda.warming import warm as fill
from fused_mlp.models import MlpSpec, ModelLoadError
from fused_mlp.models.repository.repository import Repository
from fused_mlp.models.repository.version_directory import ModelFile
from fused_mlp.models.weights.quantization import Precision
from fused_mlp.service.cli.failure import fail
from fused_mlp.service.cli.interruption import if_interrupted
from fused_mlp.service.cli.options import option
from fused_mlp.service.cli.output.progress import progress_bar
from fused_mlp.service.cli.output.result import Json, show
from fused_mlp.service.settings.environment import load_settings
from fused_mlp.service.settings.settings import SettingsError


def specs_to_run(model_file: ModelFile, precision: Precision) -> list[MlpSpec]:
    """The programs that a server may make of a version under a policy with this `precision`."""
    kept = bool(model_file.error and model_file.error.kept)
    dtypes = [dtype_on_gpu(model_file.spec, model_file.precision, kept=kept)]
    if model_file.precision == "float32":  # reduced at load, unless the error is too large
        dtypes.append(dtype_on_gpu(model_file.spec, precision, kept=False))
    return [model_file.spec.model_copy(update={"dtype": dtype}) for dtype in dict.fromkeys(dtypes)]


def command(
    arch: Annotated[
        str, option("The GPU's architecture, such as sm_90 (H100); docs/internals/cuda.md has a list.")
    ],
    output: Annotated[Path, option("The directory to fill: TRITON_CACHE_DIR of the server.")],
    repository: Annotated[
        Path | None, option("The models to compile for; default: FUSED_MLP_MODEL_REPOSITORY.")
    ] = None,
    tf32: Annotated[bool, option("For a server with FUSED_MLP_TF32=1.", None, "--tf32")] = False,
    as_json: Json = False,
) -> None:
    """Compile the CUDA kernels of all models of a repository, so that a server starts without compiling.

    No GPU is needed. Use the versions of triton and fused-mlp that will serve, and the server's
    FUSED_MLP_POLICY if it changes a model's precision. The server finds the directory as TRITON_CACHE_DIR; it may be
    mounted read-only.
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
        (version.model_file, settings.policies.of(model.name).precision)
        for model in found
        for version in model.usable
        if version.model_file is not None
    ]
    if not versions:
        fail(f"{root}: expected models, found none")
    specs = [spec for model_file, precision in versions for spec in specs_to_run(model_file, precision)]
    try:
        with (
            progress_bar(f"compiling for {arch}") as bar,
            if_interrupted(f"what is compiled is kept in {output}, and the same command goes on"),
        ):
            count = fill(
                specs, architecture, output, tf32=tf32, processes=usable_cores(), progress=bar.update
            )
    except OSError as error:
        fail(f"--output {output}: {error.strerror or error}")
    document = {"architecture": arch, "binaries": count, "versions": len(versions), "directory": output}
    show(document, as_json, lambda: f"{count} binaries for {arch} are in {output}")
