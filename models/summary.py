"""A program in one line of text, for people: `784-512-256-10 relu`, `192 -> 3 x [ln, 384 gelu, 192, +] -> ln -> 10`.
Owns the wording; knows nothing of tensors."""

from __future__ import annotations

from fused_mlp.models.spec import MlpSpec, Step

_COMBINED = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "maximum": "max", "minimum": "min"}
_NORMS = {"layer": "ln", "rms": "rms", "l2": "l2"}
# A line is read by people: programs without repetitions are cut, and looking for long ones takes time.
_LONGEST_PART = 32
_LEAST_REPEATED = 4  # `256 relu -> 256 relu` reads better than `2 x [256 relu]`
_MOST_PARTS = 40


def summarize(spec: MlpSpec) -> str:
    return _chain(spec) if spec.layers is not None else _program(spec)


def _chain(spec: MlpSpec) -> str:
    """Widths, then the distinct activations in order of appearance."""
    names: list[str] = []
    for step in spec.steps:
        name = {"gated": f"gated {getattr(step, 'function', '')}", "linear": ""}.get(step.op)
        name = getattr(step, "function", step.op) if name is None else name
        if name and name not in names:
            names.append(name.removesuffix(" x") if step.op == "gated" else name)
    return " ".join(["-".join(map(str, spec.widths)), "+".join(names)]).strip()


def _program(spec: MlpSpec) -> str:
    words: list[str] = []
    for step in spec.steps:
        if step.op == "elementwise" and words and words[-1].isdecimal():
            words[-1] += f" {step.function}"
        else:
            words.append(_word(step))
    body = " -> ".join(_folded(words))
    heads = ", ".join(
        f"{output.name} {width}" for output, width in zip(spec.outputs, spec.output_widths, strict=True)
    )
    return f"{spec.in_features} -> {body}" + (f" => {heads}" if len(spec.outputs) > 1 else "")


def _word(step: Step) -> str:  # noqa: PLR0911 - a table of steps
    match step.op:
        case "linear":
            return str(step.out_features)
        case "gated":
            return f"{step.out_features} gated {step.function}"
        case "elementwise":
            return step.function
        case "norm":
            return _NORMS[step.kind]
        case "slice":
            return f"[{step.start}:{step.stop}]"
        case "affine" | "concat" | "softmax" | "log_softmax":
            return step.op
    return _COMBINED[step.op]


def _folded(words: list[str]) -> list[str]:
    """Repetitions written once: the part that repeats over most words from each position on."""
    folded: list[str] = []
    at = 0
    while at < len(words) and len(folded) < _MOST_PARTS:
        best = (1, 1)  # how often, of how many words
        for size in range(1, min(_LONGEST_PART, (len(words) - at) // 2) + 1):
            part = words[at : at + size]
            count = 1
            while words[at + count * size : at + (count + 1) * size] == part:
                count += 1
            if count >= (2 if size > 1 else _LEAST_REPEATED) and count * size > best[0] * best[1]:
                best = (count, size)
        count, size = best
        part = words[at : at + size]
        folded.append(f"{count} x [{', '.join(part)}]" if count > 1 else part[0])
        at += count * size
    return [*folded, f"{len(words) - at} more"] if at < len(words) else folded
