# SPDX-License-Identifier: Apache-2.0
"""A program in words, for people. One line of it: `784-512-256-10 relu`, `192 -> 3 x [ln, 384 gelu, 192, +] -> ln ->
10`, `63 -> 5 x [256 relu] -> concat input -> 3 x [256 relu] -> 4`, `8 -> 2 x [64 tanh] => pi 4, v 1`. Owns the wording;
knows nothing of tensors.

`->` reads the value before it, `|` an earlier one: `64 -> 64 sigmoid | 64 relu -> *`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fused_mlp.models.program.spec import INPUT, MlpSpec, Step

# So long a line fits a terminal beside a name, a column of a table, and a label of a metric.
MAX_LENGTH = 120
# Programs without repetitions are cut, and looking for long ones takes time.
_LONGEST_PART = 32
_MIN_REPEATED = 3  # `256 relu -> 256 relu` reads better than `2 x [256 relu]`
_MAX_PARTS = 80  # more than fit
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
    start = "" if words and spec.inputs is not None and spec.steps[0].op == "slice" else str(spec.in_features)
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
            names.append(step.describe().partition(" ")[2])
        elif step.op != "linear":
            names.append(step.describe())
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


def record_name(spec: MlpSpec, step: Step) -> str:
    """Which of the named inputs a slice of the record is; empty: it is none."""
    if step.op != "slice" or step.sources != (INPUT,) or spec.inputs is None:
        return ""
    parts = [part for part in spec.record if part.start < step.stop and step.start < part.stop]
    name = " + ".join(dict.fromkeys(part.input.name for part in parts))
    whole = parts[0].start == step.start and parts[-1].stop == step.stop
    return name if whole else f"{name}[{step.start - parts[0].start}:{step.stop - parts[0].start}]"


def _input_words(spec: MlpSpec, steps: Sequence[Step]) -> dict[str, str]:
    """The text of each step that reads a named input: `user id 1,000,000 x 16`, `x 13`. Empty: it is told elsewhere."""
    names = {step.name: record_name(spec, step) for step in spec.steps}
    kinds = {part.input.name: part.input.kind for part in spec.record}
    words = {}
    for step in steps:
        if names[step.name]:
            ids = spec.kinds_by_name[step.name] == "id"
            words[step.name] = "" if ids else f"{names[step.name]} {spec.widths_by_name[step.name]}"
        elif step.op in ("embedding", "bag") and (name := names.get(step.sources[0])):
            kind = "bag" if step.op == "bag" else kinds.get(name, "id")
            words[step.name] = f"{name} {kind} {step.describe().partition(' ')[2]}"
    return words


def _words(spec: MlpSpec, steps: Sequence[Step]) -> list[_Word]:
    words: list[_Word] = []
    of_inputs = _input_words(spec, steps)
    before: str | None = None  # the value before; the first step of a part reads what the part begins with
    mergeable = False
    for step in steps:
        if step.name in of_inputs:
            if text := of_inputs[step.name]:
                words.append(_Word("|", text))
                before, mergeable = step.name, False
            continue
        follows = before is None or before in step.sources
        if mergeable and follows and step.op in _FUNCTIONS:
            words[-1] = _Word(words[-1].reads, f"{words[-1].text} {step.describe()}")
            mergeable = False
        else:
            text = step.describe()
            if step.op == "concat" and of_inputs.keys() & set(step.sources):
                text = str(spec.widths_by_name[step.name])
            elif step.op == "concat" and INPUT in step.sources and before is not None:
                text += " input"
            words.append(_Word("->" if follows else "|", text))
            mergeable = step.op == "linear"
        before = step.name
    return words


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
            if times >= (2 if length > 1 else _MIN_REPEATED) and times * length > count * size:
                count, size = times, length
        part = words[at : at + size]
        if count > 1:
            inner = _joined("", _folded(part), ", ")
            folded.append(_Word(part[0].reads, f"{count} x [{inner}]"))
        else:
            folded.append(part[0])
        at += count * size
    if len(folded) > _MAX_PARTS:
        folded[_MAX_PARTS // 2 : -_MAX_PARTS // 2] = [_Word("->", "...")]
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
