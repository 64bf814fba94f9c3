# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp import` makes a version of a repository from a model file of another format. Needs no server."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fused_mlp.service.cli.failure import fail
from fused_mlp.service.cli.interruption import if_interrupted
from fused_mlp.service.cli.options import option
from fused_mlp.service.cli.output.progress import progress_bar
from fused_mlp.service.cli.output.result import Json, show

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fused_mlp.models import Activation, Dtype, Mlp, OutputActivation
    from fused_mlp.models.importers.isolation import Sandbox
    from fused_mlp.models.weights.quantization import Precision

_ARGUMENT = re.compile(
    r"\b(activation|output_activation|prefix|name_map|transposed|dtype|state_dict|row_shape|unsafe_pickle|unsafe_torchscript|precision|calibration|max_error|sandbox|sandbox_memory)"
    r"=(\.\.\.|True|False|'[^']*'|\([^)]*\))"
)
_CHECKPOINT = "For checkpoints (.pt, .safetensors), which hold tensors alone"
_MODULE = "For torch modules"
_EXTRAS = "What the model says about itself"
_PRECISION = "Weights in fewer bits"
_SAFETY = "What the import may do"


def command(
    *,
    source: Annotated[
        str,
        typer.Argument(
            help="ONNX, .pt2 or TorchScript file, state_dict, safetensors file or folder; or code that makes a module: "
            "model.py:factory, package.module:callable."
        ),
    ],
    repository: Annotated[Path, option("Folder to import into.", None, "--repository", "-r")],
    name: Annotated[str, option("Name to serve it under.", None, "--name", "-n")],
    version: Annotated[
        int | None, option("Version to make. If not given, the next free one.", "N", min=1)
    ] = None,
    dtype: Annotated[str | None, option("Convert the weights to this.", "float32|float16|bfloat16")] = None,
    precision: Annotated[
        str | None,
        option(
            "Keep the weights in fewer bits. A quantised model is int8 unless this says float32.",
            "float32|bfloat16|int8",
            panel=_PRECISION,
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        option(
            "Rows to measure the error on: .npy, .csv or .json. Random ones if not given.",
            "FILE",
            panel=_PRECISION,
        ),
    ] = None,
    max_error: Annotated[
        float | None,
        option(
            "Largest error, as a share of a row's outputs (0.05). Layers that break it stay in float32.",
            panel=_PRECISION,
        ),
    ] = None,
    check: Annotated[
        tuple[str, str] | None,
        option(
            "Rows, and the outputs to reproduce: .npy, .csv or .json. Nothing is imported if they differ.",
            "X Y",
        ),
    ] = None,
    state_dict: Annotated[
        Path | None, option("Weights for the module: .pt or .safetensors.", "FILE", panel=_MODULE)
    ] = None,
    row_shape: Annotated[
        str | None, option("Shape of one row, where the weights do not tell it.", "N,...", panel=_MODULE)
    ] = None,
    unsafe_pickle: Annotated[
        bool, option("Load a pickled module. Runs any code in it.", None, "--unsafe-pickle", panel=_MODULE)
    ] = False,
    unsafe_torchscript: Annotated[
        bool, option("Load TorchScript. Runs any code in it.", None, "--unsafe-torchscript", panel=_MODULE)
    ] = False,
    activation: Annotated[
        str | None, option("Activation after each layer but the last.", panel=_CHECKPOINT)
    ] = None,
    output_activation: Annotated[
        str, option("Activation after the last layer.", panel=_CHECKPOINT)
    ] = "identity",
    prefix: Annotated[str, option("Import only the tensors under this name.", panel=_CHECKPOINT)] = "",
    name_map: Annotated[
        list[str] | None,
        option("Take one tensor by name. May be repeated.", "OURS=THEIRS", "--map", panel=_CHECKPOINT),
    ] = None,
    transposed: Annotated[
        bool | None, option("Weights are (in, out) rather than (out, in).", panel=_CHECKPOINT)
    ] = None,
    labels: Annotated[
        str | None, option("One label for each output, separated by commas.", panel=_EXTRAS)
    ] = None,
    description: Annotated[str | None, option("What the model does, in a sentence.", panel=_EXTRAS)] = None,
    example: Annotated[
        str | None, option("One example row: .npy, .csv or .json.", "FILE", panel=_EXTRAS)
    ] = None,
    sandbox: Annotated[
        bool,
        option(
            "Read the file in a process without network or other files. Not for Python code and pickles.",
            panel=_SAFETY,
        ),
    ] = True,
    sandbox_memory: Annotated[
        float | None,
        option(
            "Most memory of that process. By default 4 GiB and 24 times the size of the file.",
            "GIB",
            min=0.1,
            panel=_SAFETY,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Import a model file into a repository, as a new version.

    The feed-forward block of a transformer, for example:
    fused-mlp import model.safetensors -r repo -n ffn --prefix model.layers.0.mlp --activation silu

    A module of your own: fused-mlp import model.py:make_net --state-dict weights.pt -r repo -n net

    Or tensor by tensor: --map layers.0.weight=encoder.fc1.weight --map layers.0.bias=encoder.fc1.bias"""
    names = _name_map(name_map or [])
    row = None if example is None else _example(example)
    rows = None if calibrate is None else _rows(calibrate)
    checked = None if check is None else (_rows(check[0]), _rows(check[1]))
    shape = None if row_shape is None else _shape(row_shape)
    confined = sandbox and Path(source).exists() and not unsafe_pickle
    with (
        progress_bar(f"importing {source}") as bar,
        if_interrupted("nothing was imported"),
        _started(source, repository, sandbox_memory) if confined else nullcontext(False) as child,
        _explained(),
    ):
        # Imported after the child has started, so that both load their modules at the same time.
        from fused_mlp.models.importers.importer import import_model

        imported = import_model(
            source,
            repository,
            name,
            version,
            activation=cast("Activation | None", activation),
            output_activation=cast("OutputActivation", output_activation),
            prefix=prefix,
            name_map=names or None,
            transposed=transposed,
            dtype=cast("Dtype | None", dtype),
            labels=[label.strip() for label in labels.split(",")] if labels else None,
            description=description,
            example=row,
            state_dict=state_dict,
            row_shape=shape,
            unsafe_pickle=unsafe_pickle,
            unsafe_torchscript=unsafe_torchscript,
            precision=cast("Precision | None", precision),
            calibration=rows,
            max_error=max_error,
            check=checked,
            progress=bar.say,
            sandbox=child,
        )
    spec, mlp = imported.mlp.spec, imported.mlp
    document = {
        "name": imported.name,
        "version": imported.version,
        "path": imported.path,
        "format": imported.format,
        "program": spec.summary(),
        "parameters": spec.parameters,
        "dtype": spec.dtype,
        "precision": mlp.precision if mlp.reduced else "float32",
        "error": None if mlp.error is None else mlp.error.model_dump(),
    }
    show(
        document,
        as_json,
        lambda: (
            f"imported {source} as {imported.name} version {imported.version}, in {imported.path}\n"
            f"  {spec.summary()}, {spec.parameters:,} parameters, {_in_words(mlp)}\n"
            f"  to serve it: fused-mlp serve --model-repository {repository}"
        ),
    )


@contextmanager
def _started(source: str, repository: Path, memory_gib: float | None) -> Iterator[Sandbox]:
    from fused_mlp.models.importers.isolation import Sandbox

    try:
        child = Sandbox(Path(source), repository, memory_gib)
    except OSError as error:
        fail(f"{source}: {error.strerror}: {error.filename}")
    with child:
        yield child
    if child.missing:
        print(f"note: the sandbox of this import is incomplete: {child.missing}", file=sys.stderr)


@contextmanager
def _explained() -> Iterator[None]:
    from fused_mlp.models import ModelLoadError

    try:
        yield
    except ModelLoadError as error:
        fail(_ARGUMENT.sub(_option, str(error)))


def _option(argument: re.Match[str]) -> str:
    """Names the command-line option for an argument that a reader asks for in Python: `dtype='float32'` is --dtype
    float32."""
    name, value = argument[1].replace("_", "-"), argument[2]
    other = {"name-map": "--map", "calibration": "--calibrate"}
    option = other.get(name, f"--no-{name}" if value == "False" else f"--{name}")
    given = "" if value in ("True", "False", "...") else value.strip("'(,)").replace(", ", ",")
    return f"{option} {given}".rstrip()


def _name_map(pairs: list[str]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    for pair, (ours, _, theirs) in zip(pairs, split, strict=True):
        if not ours or not theirs:
            raise typer.BadParameter(f"--map: expected OURS=THEIRS, got {pair!r}")
    return {ours: theirs for ours, _, theirs in split}


def _shape(text: str) -> tuple[int, ...]:
    sizes = [size.strip() for size in text.replace("x", ",").split(",")]
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise typer.BadParameter(f"--row-shape: expected sizes such as 784 or 3,8, got {text!r}")
    return tuple(int(size) for size in sizes)


def _in_words(mlp: Mlp) -> str:
    if mlp.error is None:
        return mlp.precision if mlp.reduced else mlp.spec.dtype
    share = "" if mlp.reduced_share == 1 else f", {mlp.reduced_share:.1%} of the weights"
    return f"{mlp.precision}{share}: {mlp.error}"


def _rows(path: str) -> NDArray[Any]:
    from fused_mlp.service.cli.rows.opening import read_rows
    from fused_mlp.service.cli.rows.source import InputError

    try:
        return read_rows(path)
    except InputError as error:
        fail(str(error))


def _example(path: str) -> list[float]:
    rows = _rows(path)
    if rows.size != rows.shape[-1]:
        fail(f"{path}: expected one row, got shape {rows.shape}")
    return [float(value) for value in rows.reshape(-1)]
