"""`fused-mlp predict` sends rows from a file, from stdin or the model's example, and prints a table or JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fused_mlp.service.cli.connection import connected
from fused_mlp.service.cli.failure import fail
from fused_mlp.service.client import Client, Prediction

if TYPE_CHECKING:
    from fused_mlp.service.client.prediction import Variant
    from fused_mlp.service.client.tensors import ArrayLike


@connected
def command(
    client: Client,
    *,
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    source: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="FILE", help="Rows: .npy, .csv or .json; - reads stdin."),
    ] = None,
    example: Annotated[bool, typer.Option("--example", help="Use the example the model ships.")] = False,
    version: Annotated[
        int | None, typer.Option(help="Version; the default one if not given.", min=1, metavar="N")
    ] = None,
    variant: Annotated[
        str | None, typer.Option(metavar="fused|unfused", help="Variant; the server's choice if not given.")
    ] = None,
    top: Annotated[int, typer.Option(help="How many labels to show.", min=1, metavar="N")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    save_to: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the outputs as .npy.")
    ] = None,
) -> None:
    """Run a model on rows of numbers.

    Try it with the demo: fused-mlp predict digits --example"""
    if (source is not None) == example:
        raise typer.BadParameter("give either --input FILE (- for stdin) or --example")
    if variant not in (None, "fused", "unfused"):
        raise typer.BadParameter(f"--variant: expected fused or unfused, got {variant!r}")
    x = _example(client, model, version) if example else _rows(cast("str", source))
    prediction = client.predict(model, x, version=version, variant=cast("Variant | None", variant))
    if save_to is not None:
        _save(prediction, save_to)
    if as_json:
        typer.echo(json.dumps(_as_json(prediction)))
    else:
        from fused_mlp.service.cli.rendering import prediction_view, print_table

        served = client.model(prediction.model, version=prediction.version).version(prediction.version)
        print_table(prediction_view(prediction, served, top))


def _example(client: Client, model: str, version: int | None) -> ArrayLike:
    described = client.model(model, version=version)  # raises NOT_FOUND for a version that does not exist
    served = described.version(version)
    if served is None or served.state != "READY":
        why = f": {served.reason}" if served and served.reason else ""
        fail(f"model {model!r} cannot answer{why}")
    if not served.example:
        fail(f"model {model!r} ships no example; give rows with --input")
    return served.example


def _rows(source: str) -> ArrayLike:
    from fused_mlp.service.cli.inputs import InputError, read_rows

    try:
        return read_rows(source)
    except InputError as error:
        fail(str(error))


def _save(prediction: Prediction, path: Path) -> None:
    import numpy as np

    try:
        with path.open("wb") as file:  # given a path, numpy would append .npy to it
            np.save(file, prediction.output)
    except OSError as error:
        fail(f"{path}: {error.strerror or error}")


def _as_json(prediction: Prediction) -> dict[str, Any]:
    timings = prediction.timings
    return {
        "model": prediction.model,
        "version": prediction.version,
        "variant": prediction.variant,
        "strategy": prediction.strategy,
        "request_id": prediction.request_id,
        "timings": {
            "queue_us": timings.queue_us,
            "compute_us": timings.compute_us,
            "batch_rows": timings.batch_rows,
        },
        "output": _finite(prediction.output.tolist()),
    }


def _finite(value: Any) -> Any:
    """JSON has no NaN or Infinity: they become strings, as in protobuf's JSON."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
