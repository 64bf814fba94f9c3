# SPDX-License-Identifier: Apache-2.0
"""A program in words, for people. One line of it: `784-512-256-10 relu`, `192 -> 3 x [ln, 384 gelu, 192, +] -> ln ->
10`, `63 -> 5 x [256 relu] -> concat input -> 3 x [256 relu] -> 4`, `8 -> 2 x [64 tanh] => pi 4, v 1`. Owns the wording;
knows nothing of tensors.

`->` reads the value before it, `|` an earlier one: `64 -> 64 sigmoid | 64 relu -> *`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fused_mlp.models.spec import INPUT, MlpSpec, Step

# What fits a terminal beside a name, a column of a table, and a label of a metric.
MAX_LENGTH = 120
_MAX_FUNCTION = 32
# Programs without repetitions are cut, and looking for long ones takes time.
_LONGEST_PART = 32
_LEAST_REPEATED = 3  # `256 relu -> 256 relu` reads better than `2 x [256 relu]`
_MOST_PARTS = 80  # more than fit
_COMBINED = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "maximum": "max", "minimum": "min"}
_NORMS = {"layer": "ln", "rms": "rms", "l2": "l2"}
_PRODUCTS = ("linear", "gated")
_FUNCTIONS = ("elementwise", "softmax", "log_softmax")


class _Word(NamedTuple):
    """One step, or a product and the function after it. `reads`: -> the value before it, | an earlier one."""

    reads: str
    text: str


def summarize(spec: MlpSpec) -> str:
    if _is_sequence(spec):
        return _shortened(_sequence(spec), " ")
    shared, own = _by_output(spec)
    words = _words(spec, shared)
    start = str(spec.in_features)
    if len(spec.outputs) == 1:
        return _shortened(_joined(start, _folded(words)), " ")
    trunk = _joined(start, _folded(words))
    widths = list(zip(spec.outputs, spec.output_widths, strict=True))
    in_full = [_head(spec, output.name, width, own[output.name]) for output, width in widths]
    for heads in (in_full, [f"{output.name} {width}" for output, width in widths]):
        line = f"{trunk} => {', '.join(heads)}"
        if len(line) <= MAX_LENGTH:
            return line
    tail = f" => {', '.join(heads)}"
    if len(tail) > MAX_LENGTH // 2:
        tail = f"{tail[: MAX_LENGTH // 2 - 20].rpartition(',')[0]}, ... {len(heads)} outputs"
    return _shortened(trunk, " ", MAX_LENGTH - len(tail)) + tail


def step_detail(step: Step) -> str:
    """The parameters of a step, short: what its name and its widths do not say."""
    match step.op:
        case "linear":
            return "" if step.bias else "no bias"
        case "gated":
            return step.function if step.bias else f"{step.function}, no bias"
        case "elementwise":
            return step.function
        case "norm":
            return f"{step.kind}, eps {step.eps:g}"
        case "slice":
            return f"{step.start}:{step.stop}"
    return ""


def _is_sequence(spec: MlpSpec) -> bool:
    """Whether it is products and functions one after the other: a chain in all but its functions."""
    before = (INPUT, *(step.name for step in spec.steps))
    *inner, last = spec.steps
    return (
        len(spec.outputs) == 1
        and spec.steps[0].op in _PRODUCTS
        and last.op in (*_PRODUCTS, *_FUNCTIONS)
        and all(step.op in (*_PRODUCTS, "elementwise") for step in inner)  # a softmax inside is worth seeing
        and all(step.sources == (value,) for step, value in zip(spec.steps, before, strict=False))
    )


def _sequence(spec: MlpSpec) -> str:
    """Widths, then the distinct functions in order of appearance."""
    names = []
    for step in spec.steps:
        if step.op == "gated":
            names.append(f"gated {_function(step)}".removesuffix(" x"))
        elif step.op != "linear":
            names.append(_function(step))
    return " ".join(["-".join(map(str, spec.widths)), "+".join(dict.fromkeys(names))]).strip()


def _by_output(spec: MlpSpec) -> tuple[list[Step], dict[str, list[Step]]]:
    """(steps shared by several outputs, steps that one output alone needs by its name). A single output shares all."""
    needed_by: dict[str, set[str]] = {step.name: set() for step in spec.steps}
    for output in spec.outputs:
        needed_by.setdefault(output.value, set()).add(output.name)
    for step in reversed(spec.steps):
        for source in step.sources:
            needed_by.setdefault(source, set()).update(needed_by[step.name])
    alone = len(spec.outputs) == 1
    shared = [step for step in spec.steps if alone or len(needed_by[step.name]) > 1]
    own = {
        output.name: [step for step in spec.steps if needed_by[step.name] == {output.name}]
        for output in spec.outputs
    }
    return shared, own


def _head(spec: MlpSpec, name: str, width: int, steps: Sequence[Step]) -> str:
    words = _folded(_words(spec, steps))
    if not words or (len(words) == 1 and steps[0].op == "slice"):
        return f"{name} {width}"
    if len(words) == 1:
        return f"{name} {words[0].text}"
    return f"{name}: {_joined('', words)}"


def _words(spec: MlpSpec, steps: Sequence[Step]) -> list[_Word]:
    words: list[_Word] = []
    before: str | None = None  # the value before; the first step of a part reads what the part begins with
    mergeable = False
    for step in steps:
        follows = before is None or before in step.sources
        if mergeable and follows and step.op in _FUNCTIONS:
            words[-1] = _Word(words[-1].reads, f"{words[-1].text} {_function(step)}")
            mergeable = False
        else:
            text = describe(step)
            if step.op == "concat" and INPUT in step.sources and before is not None:
                text += " input"
            words.append(_Word("->" if follows else "|", text))
            mergeable = step.op == "linear"
        before = step.name
    return words


def _function(step: Step) -> str:
    text: str = getattr(step, "function", step.op)
    return text if len(text) <= _MAX_FUNCTION else f"{text[: _MAX_FUNCTION - 3]}..."


def describe(step: Step) -> str:  # noqa: PLR0911 - a table of steps
    """One step in a word or two: `256`, `gelu`, `ln`, `+`."""
    match step.op:
        case "linear":
            return str(step.out_features)
        case "gated":
            return f"{step.out_features} gated {_function(step)}".removesuffix(" x")
        case "elementwise":
            return _function(step)
        case "norm":
            return _NORMS[step.kind]
        case "slice":
            return f"[{step.start}:{step.stop}]"
        case "affine" | "concat" | "softmax" | "log_softmax":
            return step.op
    return _COMBINED[step.op]


def _folded(words: list[_Word]) -> list[_Word]:
    """Repetitions written once: from each position on, the part whose repetitions cover most."""
    folded: list[_Word] = []
    at = 0
    while at < len(words):
        count, size = 1, 1
        for length in range(1, min(_LONGEST_PART, (len(words) - at) // 2) + 1):
            part, times = words[at : at + length], 1
            while words[at + times * length : at + (times + 1) * length] == part:
                times += 1
            if times >= (2 if length > 1 else _LEAST_REPEATED) and times * length > count * size:
                count, size = times, length
        part = words[at : at + size]
        if count > 1:
            inner = _joined("", _folded(part), ", ")
            folded.append(_Word(part[0].reads, f"{count} x [{inner}]"))
        else:
            folded.append(part[0])
        at += count * size
    if len(folded) > _MOST_PARTS:
        folded[_MOST_PARTS // 2 : -_MOST_PARTS // 2] = [_Word("->", "...")]
    return folded


def _joined(start: str, words: Sequence[_Word], arrow: str = " -> ") -> str:
    text = start
    for word in words:
        separator = arrow if word.reads == "->" else f" {word.reads} "
        text += f"{separator if text else ''}{word.text}"
    return text


def _shortened(text: str, separator: str, length: int = MAX_LENGTH) -> str:
    """Both ends of a long text: what goes in and what comes out matter most."""
    if len(text) <= length:
        return text
    head = text[: 2 * length // 3].rpartition(separator)[0]
    rest = text[len(text) - (length - len(head) - 5) :]
    return f"{head} ... {rest.partition(separator)[2] or rest}"
