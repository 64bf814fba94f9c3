# SPDX-License-Identifier: Apache-2.0
"""Predictions and models as tables for a terminal. Text from a server is always plain text, never markup."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fused_mlp.service.cli.failure import printable
from fused_mlp.service.cli.output.graph import draw_program
from fused_mlp.service.client import InputInfo, ModelInfo, OutputInfo, Prediction, ServedKernel, VersionInfo
from fused_mlp.service.client.admin import PolicyInfo
from fused_mlp.service.client.prediction import ONLY_OUTPUT

MAX_SHOWN_ROWS = 10
MAX_SHOWN_COLUMNS = 6
MAX_SHOWN_VALUES = 24
_BAR_WIDTH = 24


class _Terminal(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def print_table(renderable: RenderableType) -> None:
    _Terminal(markup=False, highlight=False, emoji=False).print(renderable)


def prediction_view(
    prediction: Prediction, version: VersionInfo | None, top: int, count: int, requests: int
) -> RenderableType:
    """Labels if the model has them, else values; then the times. `count`: the number of all rows, of which the
    prediction holds at least the first MAX_SHOWN_ROWS."""
    outputs = [output.name for output in version.outputs] if version else []
    parts: list[RenderableType] = []
    for name, output in prediction.outputs.items():
        rows = output.reshape(len(output), -1)
        if len(prediction.outputs) > 1:
            parts.append(Text(f" {name}", "bold"))
        labels = version.labels if version and name in (ONLY_OUTPUT, *outputs[:1]) else ()
        if labels:
            probabilities = version is not None and version.output_activation == "softmax"
            parts.append(_label_table(rows, labels, top, probabilities))
        else:
            parts.append(_value_table(rows))
    if count > MAX_SHOWN_ROWS:
        parts.append(
            Text(f" ... and {count - MAX_SHOWN_ROWS:,} more rows; --json or --output has all", "dim")
        )
    if len(outputs) > len(prediction.outputs) == 1:
        (name,) = prediction.outputs
        others = ", ".join(each for each in outputs if each != name)
        parts.append(Text(f" output {name}; --output-name has {others}", "dim"))
    parts.append(Text(f" {_summary(prediction, requests)}", "dim", no_wrap=True, overflow="ignore"))
    return Group(*parts)


def _label_table(rows: NDArray[Any], labels: Sequence[str], top: int, probabilities: bool) -> RenderableType:
    count = min(top, len(labels))
    order = np.argsort(-rows[:MAX_SHOWN_ROWS], axis=1, kind="stable")[:, :count]
    if len(rows) == 1:
        kind = "probability" if probabilities else "score"
        table = _table("label", kind, "", numbers=[kind])
        for rank, column in enumerate(order[0]):
            value = float(rows[0, column])
            bar = "━" * round(_BAR_WIDTH * value) if probabilities and 0 <= value <= 1 else ""
            table.add_row(
                Text(labels[column], "bold" if rank == 0 else ""), _number(value, probabilities), bar
            )
        return table
    table = _table("row", *(f"#{rank + 1}" for rank in range(count)))
    for index, columns in enumerate(order):
        cells = [Text(f"{labels[c]}  {_number(float(rows[index, c]), probabilities)}") for c in columns]
        table.add_row(str(index), *cells)
    return table


def _value_table(rows: NDArray[Any]) -> RenderableType:
    if len(rows) == 1:
        table = _table("output", "value", numbers=["value"])
        for index, value in enumerate(rows[0][:MAX_SHOWN_VALUES]):
            table.add_row(str(index), _number(float(value)))
        if rows.shape[1] > MAX_SHOWN_VALUES:
            table.add_row("...", f"{rows.shape[1]} in all")
        return table
    width = min(rows.shape[1], MAX_SHOWN_COLUMNS)
    columns = [str(column) for column in range(width)]
    table = _table("row", *columns, *(["..."] if rows.shape[1] > width else []), numbers=columns)
    for index, row in enumerate(rows[:MAX_SHOWN_ROWS]):
        table.add_row(str(index), *(f"{value:.4g}" for value in row[:width]))
    return table


def _number(value: float, probability: bool = False) -> str:
    return f"{value:.2%}" if probability and np.isfinite(value) else f"{value:.6g}"


def _summary(prediction: Prediction, requests: int) -> str:
    timings = prediction.timings
    if requests > 1:
        return (
            f"{prediction.model}/{prediction.version} {prediction.variant} ({prediction.strategy}): "
            f"{requests:,} requests, each {timings.queue_us / requests:,.1f} us queued, "
            f"{timings.compute_us / requests:,.1f} us for its batch"
        )
    rows = "1 row" if timings.batch_rows == 1 else f"{timings.batch_rows} rows"
    return (
        f"{prediction.model}/{prediction.version} {prediction.variant} ({prediction.strategy}): "
        f"{timings.queue_us:,.1f} us queued, {timings.compute_us:,.1f} us for a batch of {rows}"
    )


def models_table(models: Sequence[ModelInfo]) -> RenderableType:
    """Broken versions are explained below the table."""
    table = _table("model", "version", "program", "dtype", "answers", "kernels")
    broken: list[RenderableType] = []
    for model in models:
        for version in reversed(model.versions):
            name = model.name if version is model.versions[-1] else ""
            default = " (default)" if version.version == model.default_version else ""
            if version.state != "READY":
                failed = version.state == "UNAVAILABLE"
                state = Text(
                    version.state if failed else version.state.lower().replace("_", " "),
                    "red" if failed else "dim",
                )
                known = (version.summary, version.dtype, "") if version.summary else ()
                table.add_row(name, f"{version.version}{default}", *known, state)
                if failed:
                    broken.append(Text(f"{model.name}/{version.version}: {version.reason}", "red"))
                continue
            kernels = "\n".join(map(_kernel, version.kernels))
            table.add_row(
                name,
                f"{version.version}{default}",
                version.summary,
                _kept_in(version),
                version.variant,
                kernels,
            )
    return Group(table, *broken)


def model_view(model: ModelInfo) -> RenderableType:
    """The details of one model, version by version."""
    parts: list[RenderableType] = []
    for version in reversed(model.versions):
        default = ", the default" if version.version == model.default_version else ""
        parts.append(Text(f"{model.name} version {version.version}{default}", "bold"))
        parts.append(_facts(version))
        for kernel in version.kernels:
            threads = "1 thread" if kernel.threads == 1 else f"{kernel.threads} threads"
            what = (kernel.backend, f"on {kernel.device}", kernel.isa, kernel.dtype, threads, kernel.strategy)
            text = ", ".join(part for part in what if part)
            parts.append(_indented(f"{kernel.variant} kernel", f"{text}\n{kernel.reason}".strip()))
        parts.append(Text(""))
    return Group(*parts[:-1])


def graph_view(model: ModelInfo) -> RenderableType:
    """The program of the default version, or of the last one."""
    version = model.version() or model.versions[-1]
    parts: list[RenderableType] = [
        Text(f"{model.name} version {version.version}: {version.summary or version.state}", "bold")
    ]
    parts += [Text(line, no_wrap=True, overflow="ellipsis") for line in draw_program(version)]
    return Group(*parts)


def _of_no_model(policy: PolicyInfo) -> PolicyInfo:
    return replace(policy, model="", fallbacks=(), default_version=0, canary=None, unknown=())


def policy_table(policies: Sequence[PolicyInfo], *, summary: bool = False) -> RenderableType:
    """Details that do not fit are listed below the table: arms, labels and versions, and versions that fell back to
    unfused. `summary`: with many models, those with the policy of models loaded later share one line."""
    default = next((policy for policy in policies if not policy.model), None)
    shown = list(policies)
    if summary and len(policies) > MAX_SHOWN_ROWS:
        shown = [p for p in policies if p is default or _of_no_model(p) != default]
    left = len(policies) - len(shown)
    numbers = ("split", "shadow", "weight")
    table = _table(
        "model",
        "answers",
        "split",
        "override",
        "shadow",
        "on mismatch",
        "weight",
        "precision",
        numbers=numbers,
    )
    table.padding = 0, 1, 0, 0  # to fit into 80 columns
    below: list[RenderableType] = []
    for policy in shown:
        override = "allowed" if policy.allow_override else "refused"
        split, shadow = (f"{share:.4g}" if share else "-" for share in (policy.split, policy.shadow))
        name = Text(policy.model) if policy.model else Text("(loaded later)", "dim")
        weight = f"{policy.weight:g}"
        answers = policy.variant if policy.version == "latest" else f"{policy.version}/{policy.variant}"
        table.add_row(name, answers, split, override, shadow, policy.on_mismatch, weight, policy.precision)
        shares = [f"{arm} {share:.4g}" for arm, share in policy.arms.items()]
        labels = [f"{label} is version {version}" for label, version in policy.labels.items()]
        if policy.canary is not None:
            state = policy.canary.state.replace("_", " ")
            shares.append(f"canary to {policy.canary.to} {state} {policy.canary.text}".rstrip())
        if policy.versions != "all":
            labels.append(f"versions {policy.versions} are served")
        if shares or labels:
            below.append(Text(f"{policy.model or 'models loaded later'}: {', '.join([*shares, *labels])}"))
    below += [
        Text(f"{policy.model}/{f.version} answers unfused ({f.reason}): {f.detail}", "red")
        for policy in policies
        for f in policy.fallbacks
    ]
    below += [Text(f"{policy.model}: {line}", "yellow") for policy in policies for line in policy.unknown]
    rest = [Text(f" and {left:,} models with the policy of those loaded later; --json has all", "dim")]
    return Group(table, *(rest if left else []), *below)


def _facts(version: VersionInfo) -> RenderableType:
    facts = {"state": f"{version.state} {version.reason}".strip()}
    if version.summary:
        facts |= {
            "description": version.description,
            "program": version.summary,
            "weights": f"{version.parameters:,} parameters, {_kept_in(version)}",
            "error": _error(version),
            "input": _input(version),
            **_outputs(version),
            "labels": ", ".join(version.labels),
            "answers": f"{version.variant}",
        }
    return Group(*(_indented(key, value) for key, value in facts.items() if value))


def _kept_in(version: VersionInfo) -> str:
    """The model's dtype, or the precision of its weights where that is lower."""
    return version.precision if version.precision not in ("", "float32") else version.dtype


def _error(version: VersionInfo) -> str:
    error = version.precision_error
    if error is None:
        return ""
    text = f"{100 * error.largest:.3g}% of a row's outputs at most, {100 * error.mean:.3g}% on average"
    if error.cosine is not None:
        text += f", cosine {error.cosine:.6f}"
    if error.top1 is not None:
        text += f", top-1 the same in {error.top1:.1%}"
    text += f"; over {error.rows} {'given' if error.calibrated else 'random'} rows"
    return text + (f"; in float32: {', '.join(error.kept)}" if error.kept else "")


def _indented(key: str, value: str) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=16)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"  {key}", "dim"), Text(value))
    return grid


def _kernel(kernel: ServedKernel) -> str:
    """Short, for a column; `models NAME` shows the rest."""
    return f"{kernel.variant}: {kernel.backend} {kernel.isa}".rstrip()


def input_text(each: InputInfo) -> str:
    """`id 1,000,000`, `string 250`, `float (13,)`."""
    known = f" of {each.vocabulary:,}" if each.vocabulary else ""
    tables = "".join(f" {size:,}" for size in each.tables) if not known else ""
    return (
        f"{each.kind}{known}{tables}" + (f" {each.shape}" if each.shape else "") + (" or fewer" * each.ragged)
    )


def _input(version: VersionInfo) -> str:
    if version.inputs:
        lines = [f"{each.name}: {input_text(each)}" for each in version.inputs]
        return "\n".join(lines) + ("\nwith an example" if version.named_example else "")
    own = f", or of shape {version.input_shape}" if len(version.input_shape) > 1 else ""
    return f"{version.in_features} numbers{own}" + (", with an example" if version.example else "")


def _outputs(version: VersionInfo) -> dict[str, str]:
    """One line if there is one, else a list by name."""

    def size(output: OutputInfo) -> str:
        if output.squeeze:
            return "1 number, answered as (rows,)"
        return "1 number" if output.width == 1 else f"{output.width} numbers"

    if len(version.outputs) == 1:
        return {"output": size(version.outputs[0])}
    return {"outputs": "\n".join(f"{output.name}: {size(output)}" for output in version.outputs)}


def _table(*columns: str, numbers: Collection[str] = ()) -> Table:
    """`numbers` are the columns to align on the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in numbers else "left")
    return table
