# SPDX-License-Identifier: Apache-2.0
"""What --json prints, command by command: its shape, and the keys of its objects. Keys are added, never renamed.
docs/operations/commands.md has these tables; a test compares them with what the commands print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Document(NamedTuple):
    shape: str
    keys: Mapping[str, str]


# Commands without --json, and why.
WITHOUT_JSON = {"serve": "It runs until it is ended; `--log-format json` makes its log JSON."}

_MODEL = {
    "name": "name of the model",
    "default_version": "the version that answers requests which name none",
    "versions": "each with its `version`, `state`, `reason`, layers, inputs, outputs, labels and kernels",
}
_POLICY = {
    "model": "name of the model; empty: of models that are loaded later",
    "variant": "`fused` or `unfused`: answers requests that name none",
    "split": "share of the requests for the other variant",
    "allow_override": "whether a request may name its variant",
    "shadow": "share of the batches that run on both",
    "on_mismatch": "`log` or `unfused`: what happens when the outputs differ",
    "weight": "share of the CPU time, relative to other models",
    "precision": "how the weights of float32 versions are kept",
    "version": "answers requests that name none: a number, a label, `latest` or `previous`",
    "versions": "those that are served",
    "default_version": "the number that `version` stands for now",
    "shadow_arm": "what the shadow compares with; empty: the other variant",
    "arms": "shares of other arms",
    "labels": "names of versions",
    "fallbacks": "versions that answer unfused although the policy says fused, and why",
    "canary": "the last canary: `to`, `state`, `share`, `text`, `reason`; null: none",
    "unknown": "what the policy names and is not there",
}
_FLEET = {
    "deployment": "what was asked for: name, bounds, settings, cores",
    "wanted": "how many replicas there should be now",
    "rollout": "whether replicas are being replaced",
    "error": "the last error; empty: none",
    "controller": "`node`, `pid`, and whether it was `restarted`",
    "replicas": "each with `name`, `state`, `generation`, `node`, `address`, `metrics_url`, `pid`, `utilization`",
}
_ONE_MODEL = Document("An object.", _MODEL)
_POLICIES = Document("A list with an object for each policy.", _POLICY)
_ONE_FLEET = Document("An object.", _FLEET)

DOCUMENTS: dict[str, Document] = {
    "predict": Document(
        "An object. NaN and infinities are strings. `-o` writes other formats.",
        {
            "model": "name of the model",
            "version": "the version that answered",
            "variant": "the variant that answered",
            "strategy": "how its kernel ran the batch",
            "request_id": "the request's name in the server's log",
            "timings": "`queue_us`, `compute_us`, `batch_rows`; of several requests the sums, and the largest batch",
            "output": "a list of numbers for each row",
            "outputs": "in place of `output`, with `--output-name '*'`: each output by its name",
            "output_name": "with `--output-name NAME`: that name",
            "requests": "how many requests the rows took, if several",
        },
    ),
    "models": Document("A list with an object for each model; with NAME, that object.", _MODEL),
    "health": Document(
        "An object.",
        {
            "target": "the server that was asked",
            "model": "the model that was asked about; null: the server",
            "status": "`SERVING`, `NOT_SERVING` or `SERVICE_UNKNOWN`",
            "serving": "whether the exit code is 0",
        },
    ),
    "import": Document(
        "An object.",
        {
            "name": "name of the model",
            "version": "the version that was made",
            "path": "its directory",
            "format": "what the source was read as",
            "program": "what the model computes, in short",
            "parameters": "how many",
            "dtype": "type of its numbers",
            "precision": "how its weights are kept",
            "error": "what fewer bits cost: `rows`, `largest`, `mean`, `cosine`, `top1`, `kept`; null: nothing",
        },
    ),
    "load": _ONE_MODEL,
    "unload": Document("An object.", {"model": "name of the model", "unloaded": "true"}),
    "pin": _ONE_MODEL,
    "rollback": _ONE_MODEL,
    "ab": Document(
        "An object.",
        {
            "title": "the heading of the table",
            "arms": "the names of both",
            "rows": "each with `name`, `unit`, a value for each arm, and the `ratio` with its confidence interval",
            "difference": "how far the outputs differ; null: not known",
            "distribution": "latencies of both at many quantiles, for plots",
            "timeline": "latencies of both over time, for plots",
            "facts": "model, kernels, rate, machine, versions",
            "notes": "what limits the meaning of the figures",
            "problems": "why the figures are not valid; empty: they are",
            "valid": "whether the exit code is 0",
            "verdict": "the result as one sentence",
            "confidence": "of the intervals",
        },
    ),
    "policy get": _POLICIES,
    "policy set": _POLICIES,
    "policy unset": _POLICIES,
    "policy reset": _POLICIES,
    "policy history": Document(
        "A list with an object for each change, the newest last.",
        {
            "time_s": "seconds since 1970",
            "by": "the caller",
            "model": "name of the model; empty: all",
            "what": "the change",
        },
    ),
    "canary": Document(
        "An object, when the canary has ended; with `--no-wait`, when it has started.",
        {
            "model": "name of the model",
            "version": "what the policy says answers requests which name no version",
            "default_version": "the number that this stands for now",
            "canary": "`to`, `state`, `share`, `text`, `reason`; states: running, promoted, rolled_back, stopped",
        },
    ),
    "profile": Document(
        "An object. With `--live` another one: `requests`, `dropped`, `phases`, `trace`.",
        {
            "model": "what was profiled, in short",
            "parameters": "how many",
            "precision": "how the fused kernel keeps the weights",
            "compared": "which variant runs which weights, where they differ",
            "device": "where it ran",
            "threads": "of one call",
            "machine": "what it ran on",
            "torch": "its version",
            "kernel": "the fused kernel, in words",
            "flops_per_s": "measured limit of the machine",
            "int8_ops_per_s": "the same in int8; null: not measured",
            "bytes_per_s": "measured limit of reading the weights in float32",
            "fused_bytes_per_s": "the same as the fused kernel keeps them; null: in float32",
            "batches": "the batch sizes",
            "points": "each variant at each batch size: times, counts, what limits it, speed-up over eager",
            "steps": "each step of the program at each batch size",
            "flames": "flame graphs as trees",
            "traces": "files of traces, with `--trace-dir`",
            "failures": "variants that could not run, and why",
            "advice": "a sentence for each batch size",
            "notes": "what limits the meaning of the times",
            "problems": "why the times are not valid; empty: they are",
            "expectations": "what `--expect` guessed, and what was found",
            "sweep": "the cells of `--sweep`; null: none",
            "made": "when, by which versions, on which machine",
        },
    ),
    "warm": Document(
        "An object.",
        {
            "architecture": "the GPU's",
            "binaries": "how many kernels the directory holds for the models",
            "versions": "how many versions of models",
            "directory": "where they are",
        },
    ),
    "ray up": _ONE_FLEET,
    "ray rollout": _ONE_FLEET,
    "ray status": _ONE_FLEET,
    "ray down": Document("An object.", {"name": "name of the fleet", "down": "true"}),
}
