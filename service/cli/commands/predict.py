# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp predict` sends rows from a file, from stdin or the model's example, and prints a table or JSON or writes
the outputs to a file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fused_mlp.service.cli.connection import connected
from fused_mlp.service.cli.failure import explain, fail
from fused_mlp.service.cli.interruption import if_interrupted
from fused_mlp.service.cli.options import Model, option
from fused_mlp.service.cli.output.progress import Bar, progress_bar
from fused_mlp.service.client import Client, InputInfo, PredictError, Prediction, VersionInfo
from fused_mlp.service.client.prediction import ALL_OUTPUTS, ONLY_OUTPUT

if TYPE_CHECKING:
    from fused_mlp.service.cli.rows.sending import Answers
    from fused_mlp.service.cli.rows.source import Rows
    from fused_mlp.service.policy.arm import Arm


@connected
def command(
    client: Client,
    *,
    model: Model,
    source: Annotated[
        str | None,
        option(
            "File of rows: CSV, TSV, JSON, JSON Lines, .npy or .npz. The content tells the format; - reads stdin.",
            "FILE",
            "--input",
            "-i",
        ),
    ] = None,
    example: Annotated[bool, option("Send the example row that the model has.", None, "--example")] = False,
    version: Annotated[
        int | None, option("Version to ask. If not given, the default one.", "N", min=1)
    ] = None,
    variant: Annotated[
        str | None,
        option("Variant to ask. If not given, the server chooses.", "fused|unfused"),
    ] = None,
    arm: Annotated[
        str | None,
        option("Version and variant in one, such as 3/fused; also a label, or previous.", "ARM"),
    ] = None,
    output_name: Annotated[
        str | None,
        option("Which output of a model that has several; * for all. If not given, the first.", "NAME"),
    ] = None,
    shared: Annotated[
        str | None,
        option("Inputs that all rows have in common, which the file then lacks: '{\"user\": 7}'.", "JSON"),
    ] = None,
    top_k: Annotated[
        int | None, option("Answer so many rows, those with the largest output.", "N", min=1)
    ] = None,
    top: Annotated[int, option("How many labels to show.", "N", min=1)] = 3,
    as_json: Annotated[
        bool,
        option("Print one JSON document, for programs. For many rows, -o is better.", None, "--json"),
    ] = False,
    output: Annotated[
        Path | None,
        option(
            "Write the outputs: .csv, .tsv, .npy, .npz, .json or .jsonl; - prints JSON Lines.",
            "FILE",
            "--output",
            "-o",
        ),
    ] = None,
    request_rows: Annotated[
        int, option("Most rows in one request; more rows are sent in parts.", "N", min=1)
    ] = 1024,
) -> None:
    """Run a model on rows of numbers.

    A model with named inputs takes columns, or keys of JSON objects, of those names.

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

    in_common = _shared(shared)
    all_outputs = output_name == ALL_OUTPUTS
    named = _arm(arm, version, variant)
    if named is not None and named.version.isdigit():
        version = int(named.version)

    def send(part: Any, version: int | None) -> Prediction:
        which: dict[str, Any] = {"version": version, "variant": variant}
        if named is not None:  # once its version is known, that version answers all parts
            which = {"arm": str(named._replace(version=str(version or named.version)))}
        if top_k is not None and answers.requests:
            fail(f"--top-k: expected at most {request_rows:,} rows, got more; see --request-rows")
        prediction = client.predict(model, part, **which, output=output_name, shared=in_common, top_k=top_k)
        if all_outputs:
            return prediction
        # A table or file has a column for every number, also if the model returns (rows,).
        outputs = {name: y.reshape(len(y), -1) for name, y in prediction.outputs.items()}
        return replace(prediction, output=next(iter(outputs.values())), outputs=outputs)

    answers = Answers(keep_all=as_json)
    try:
        check_output(output, source, all_outputs)
        asked = _Asked(client, model, version)
        with nullcontext() if source is None else open_rows(source, asked.inputs_without(in_common)) as given:
            # Rows of text are also sent to an unknown model: the server says what is wrong.
            served = asked.known if given is not None and given.shape is None else asked.required()
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
        from fused_mlp.service.cli.output.rendering import prediction_view, print_table

        labels = _labels(client, prediction)
        print_table(prediction_view(prediction, labels, top, answers.rows, answers.requests))
        if prediction.positions is not None:
            typer.echo("rows, from 0: " + ", ".join(map(str, prediction.positions.tolist())))
        if output is not None:
            typer.echo(f"written: {output}")


@dataclass
class _Asked:
    """The server's description of a version, fetched when needed."""

    client: Client
    model: str
    version: int | None
    known: VersionInfo | None = None

    def required(self) -> VersionInfo | None:
        """Raises NOT_FOUND for a version that does not exist."""
        if self.known is None:
            self.known = self.client.model(self.model, version=self.version).version(self.version)
        return self.known

    def inputs_without(self, shared: Collection[str]) -> Callable[[], tuple[InputInfo, ...]]:
        """The named inputs of a row."""

        def inputs() -> tuple[InputInfo, ...]:
            try:
                found = self.required()
            except PredictError:
                return ()
            return tuple(each for each in (found.inputs if found else ()) if each.name not in shared)

        return inputs


def _shared(text: str | None) -> dict[str, Any]:
    try:
        given = {} if text is None else json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise typer.BadParameter(f"--shared: expected a JSON object with the values of inputs, got {text!r}")
    return given


def _arm(text: str | None, version: int | None, variant: str | None) -> Arm | None:
    if text is None:
        return None
    if version is not None or variant is not None:
        raise typer.BadParameter("give either --arm, or --version and --variant")
    from fused_mlp.service.policy.arm import parse_arm

    try:
        return parse_arm(text)
    except ValueError as error:
        raise typer.BadParameter(f"--arm: {error}") from None


def _labels(client: Client, prediction: Prediction) -> VersionInfo | None:
    """The names of outputs. The answers are already there: a table without names is better than an error."""
    try:
        return client.model(prediction.model, version=prediction.version).version(prediction.version)
    except PredictError:
        return None


def _example(served: VersionInfo | None, model: str) -> Rows:
    import numpy as np

    from fused_mlp.service.cli.rows.arrays import array_rows
    from fused_mlp.service.cli.rows.opening import object_rows

    if served is None or served.state not in ("READY", "ON_DEMAND"):
        why = f": {served.reason}" if served and served.reason else ""
        fail(f"model {model!r} cannot answer{why}")
    if served.named_example:
        return object_rows("example", [served.named_example], served.inputs)
    if not served.example:
        fail(f"model {model!r} ships no example; give rows with --input")
    return array_rows("example", np.array(served.example, np.float32))


def _lay_out(rows: Rows, served: VersionInfo | None, model: str) -> tuple[tuple[int, ...] | None, int]:
    """The dimensions in front of a row, and its width; (None, 0) for text, which has its own rows."""
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
    """Adds up all predictions and writes their outputs. A failure says how many rows were done."""
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
                if file is not None:
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
    """If the number of rows is unknown, shows the share of the input that was read."""
    share = done / total if total else rows.share_read()
    bar.update(share or 0, None if share is None else 1, f"{done:,} rows")


def _as_json(
    prediction: Prediction, leading: tuple[int, ...] | None, requests: int, all_outputs: bool
) -> dict[str, Any]:
    from fused_mlp.service.cli.rows.output import finite

    timings = prediction.timings
    outputs = {}
    for name, y in prediction.outputs.items():
        shaped = y if leading is None else y.reshape(*leading, *y.shape[1:])
        outputs[name] = finite(shaped.tolist())
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
        **({} if prediction.positions is None else {"positions": prediction.positions.tolist()}),
        **({"requests": requests} if requests > 1 else {}),
        **({"outputs": outputs} if all_outputs else {"output": outputs[first]}),
    }
