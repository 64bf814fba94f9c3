# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp predict` sends rows from a file, from stdin or the model's example, and prints a table or JSON or writes
the outputs to a file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fused_mlp.service.cli.completion import model_names
from fused_mlp.service.cli.connection import connected
from fused_mlp.service.cli.failure import explain, fail
from fused_mlp.service.cli.interruption import if_interrupted
from fused_mlp.service.cli.progress import Bar, progress_bar
from fused_mlp.service.client import Client, PredictError, Prediction, VersionInfo
from fused_mlp.service.client.prediction import ALL_OUTPUTS, ONLY_OUTPUT

if TYPE_CHECKING:
    from fused_mlp.service.arm import Arm
    from fused_mlp.service.cli.rows.sending import Answers
    from fused_mlp.service.cli.rows.source import Rows


@connected
def command(
    client: Client,
    *,
    model: Annotated[str, typer.Argument(help="Name of the model.", autocompletion=model_names)],
    source: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="File of rows: CSV, TSV, JSON, JSON Lines, .npy or .npz. The content tells the format; - reads stdin.",
        ),
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Send the example row that the model has.")
    ] = False,
    version: Annotated[
        int | None, typer.Option(help="Version to ask. If not given, the default one.", min=1, metavar="N")
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(metavar="fused|unfused", help="Variant to ask. If not given, the server chooses."),
    ] = None,
    arm: Annotated[
        str | None,
        typer.Option(
            metavar="ARM", help="Version and variant in one, such as 3/fused; also a label, or previous."
        ),
    ] = None,
    output_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which output of a model that has several; * for all. If not given, the first.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="How many labels to show.", min=1, metavar="N")] = 3,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON document, for programs. For many rows, -o is better."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the outputs: .csv, .tsv, .npy, .npz, .json or .jsonl; - prints JSON Lines.",
        ),
    ] = None,
    request_rows: Annotated[
        int, typer.Option(help="Most rows in one request; more rows are sent in parts.", min=1, metavar="N")
    ] = 1024,
) -> None:
    """Run a model on rows of numbers.

    Try it with the demo: fused-mlp predict digits --example"""
    from fused_mlp.service.cli.rows.opening import open_rows
    from fused_mlp.service.cli.rows.output import STDOUT, OutputError, check_output
    from fused_mlp.service.cli.rows.sending import Answers, predict_parts
    from fused_mlp.service.cli.rows.source import InputError

    if (source is not None) == example:
        raise typer.BadParameter("give either --input FILE (- for stdin) or --example")
    if variant not in (None, "fused", "unfused"):
        raise typer.BadParameter(f"--variant: expected fused or unfused, got {variant!r}")
    if as_json and output == STDOUT:
        raise typer.BadParameter("give either --json or --output -: both print to stdout")

    all_outputs = output_name == ALL_OUTPUTS
    named = _arm(arm, version, variant)
    if named is not None and named.version.isdigit():
        version = int(named.version)

    def send(part: Any, version: int | None) -> Prediction:
        which: dict[str, Any] = {"version": version, "variant": variant}
        if named is not None:  # its version, once that is known, answers all parts
            which = {"arm": str(named._replace(version=str(version or named.version)))}
        prediction = client.predict(model, part, **which, output=output_name)
        if all_outputs:
            return prediction
        # A table, and a file, has a column for every number, also where the model answers (rows,).
        outputs = {name: y.reshape(len(part), -1) for name, y in prediction.outputs.items()}
        return replace(prediction, output=next(iter(outputs.values())), outputs=outputs)

    answers = Answers(keep_all=as_json)
    try:
        check_output(output, source, all_outputs)
        with nullcontext() if source is None else open_rows(source) as given:
            served = None
            if given is None or given.shape is not None:  # raises NOT_FOUND for a version that does not exist
                served = client.model(model, version=version).version(version)
            rows = given or _example(served, model)
            leading, width = _lay_out(rows, served, model)
            parts = rows.parts(request_rows, width)
            predictions = predict_parts(send, parts, version)
            _take_all(rows, predictions, answers, output, leading, all_outputs=all_outputs)
    except (InputError, OutputError) as error:
        fail(str(error))
    prediction = answers.merged()
    if as_json:
        typer.echo(json.dumps(_as_json(prediction, leading, answers.requests, all_outputs)))
    elif output != STDOUT:
        from fused_mlp.service.cli.rendering import prediction_view, print_table

        labels = _labels(client, prediction)
        print_table(prediction_view(prediction, labels, top, answers.rows, answers.requests))
        if output is not None:
            typer.echo(f"written: {output}")


def _arm(text: str | None, version: int | None, variant: str | None) -> Arm | None:
    if text is None:
        return None
    if version is not None or variant is not None:
        raise typer.BadParameter("give either --arm, or --version and --variant")
    from fused_mlp.service.arm import parse_arm

    try:
        return parse_arm(text)
    except ValueError as error:
        raise typer.BadParameter(f"--arm: {error}") from None


def _labels(client: Client, prediction: Prediction) -> VersionInfo | None:
    """What names the outputs. The answers are there: a table without names is better than an error."""
    try:
        return client.model(prediction.model, version=prediction.version).version(prediction.version)
    except PredictError:
        return None


def _example(served: VersionInfo | None, model: str) -> Rows:
    import numpy as np

    from fused_mlp.service.cli.rows.source import MemoryRows

    if served is None or served.state not in ("READY", "ON_DEMAND"):
        why = f": {served.reason}" if served and served.reason else ""
        fail(f"model {model!r} cannot answer{why}")
    if not served.example:
        fail(f"model {model!r} ships no example; give rows with --input")
    return MemoryRows("example", np.array(served.example, np.float32))


def _lay_out(rows: Rows, served: VersionInfo | None, model: str) -> tuple[tuple[int, ...] | None, int]:
    """The dimensions in front of a row, and its width; (None, 0) for text, which has rows of its own."""
    from fused_mlp.service.cli.rows.source import leading_shape

    if rows.shape is None:
        return None, 0
    # A version that is not ready has no width: the server says why it cannot answer.
    width = (served and served.in_features) or (rows.shape or (0,))[-1]
    leading = leading_shape(rows.shape, width)
    if leading is None or not width or 0 in leading:
        fail(
            f"{rows.name}: model {model!r} takes rows of {width} numbers, got an array of shape {rows.shape}"
        )
    if rows.shape[-1] != width:
        count = f"{math.prod(leading):,} rows" if math.prod(leading) > 1 else "1 row"
        typer.echo(f"{rows.name}: an array of shape {rows.shape} is taken as {count} of {width}", err=True)
    return leading, width


def _take_all(
    rows: Rows,
    predictions: Iterator[Prediction],
    answers: Answers,
    output: Path | None,
    leading: tuple[int, ...] | None,
    *,
    all_outputs: bool,
) -> None:
    """Add all predictions up and write their outputs. A failure says how far it got."""
    from fused_mlp.service.cli.rows.output import STDOUT, open_output
    from fused_mlp.service.cli.rows.source import InputError

    total = None if leading is None else math.prod(leading)
    try:
        with (
            nullcontext() if output in (None, STDOUT) else if_interrupted(f"{output} was not written"),
            open_output(output, leading) as file,
            progress_bar(rows.name) as bar,
        ):
            for prediction in predictions:
                file.write(prediction.outputs if all_outputs else prediction.output)
                answers.add(prediction)
                _show_progress(bar, answers.rows, total, rows)
        return
    except InputError as error:
        problem = str(error)
    except PredictError as error:
        problem = explain(error)
    except OSError as error:
        problem = f"{output}: {error.strerror or error}"
    if answers.rows:
        problem += f"; stopped after {answers.rows:,} rows"
        problem += f", {output} was not written" if output not in (None, STDOUT) else ""
    fail(problem)


def _show_progress(bar: Bar, done: int, total: int | None, rows: Rows) -> None:
    """Without a number of rows, the share of the input that was read counts."""
    share = done / total if total else rows.share_read()
    bar.update(share or 0, None if share is None else 1, f"{done:,} rows")


def _as_json(
    prediction: Prediction, leading: tuple[int, ...] | None, requests: int, all_outputs: bool
) -> dict[str, Any]:
    timings = prediction.timings
    outputs = {}
    for name, y in prediction.outputs.items():
        shaped = y if leading is None else y.reshape(*leading, *y.shape[1:])
        outputs[name] = _finite(shaped.tolist())
    first = next(iter(outputs))
    return {
        "model": prediction.model,
        "version": prediction.version,
        "variant": prediction.variant,
        "strategy": prediction.strategy,
        "request_id": prediction.request_id,
        **({} if all_outputs or first == ONLY_OUTPUT else {"output_name": first}),
        "timings": {
            "queue_us": timings.queue_us,
            "compute_us": timings.compute_us,
            "batch_rows": timings.batch_rows,
        },
        **({"requests": requests} if requests > 1 else {}),
        **({"outputs": outputs} if all_outputs else {"output": outputs[first]}),
    }


def _finite(value: Any) -> Any:
    """JSON has no NaN or Infinity: they become strings, as in protobuf's JSON."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
