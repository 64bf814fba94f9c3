# SPDX-License-Identifier: Apache-2.0
"""Which arguments of `fused-mlp profile` go together. An argument that would have no effect is refused."""

from __future__ import annotations

import typer

from fused_mlp.service.cli.failure import misuse

_OF_LIVE = ("seconds", "tls_ca", "tls_cert", "tls_key", "token_file")
_OF_SWEEP = ("sweep_widths", "sweep_batches", "sweep_file")
_OF_DIMS = ("activation", "gated", "precision")
_WITH_LIVE = ("live", "trace_dir", "as_json", *_OF_LIVE)
_MOST_THREADS = 1024


def refuse_misplaced(context: typer.Context) -> None:
    given = {name: value for name, value in context.params.items() if _was_given(context, name)}
    if "live" in given:
        if "model" in given or "dims" in given:
            misuse("expected --live, a MODEL or --dims; got more than one of them")
        _refuse([name for name in given if name not in _WITH_LIVE], "expected without --live")
        return
    _refuse([name for name in _OF_LIVE if name in given], "expected with --live HOST:PORT only")
    if not given.get("sweep"):
        _refuse([name for name in _OF_SWEEP if name in given], "expected with --sweep only")
    if "model" in given and "dims" not in given:
        _refuse(
            [name for name in _OF_DIMS if name in given],
            "expected with --dims only, got a MODEL, which has its own",
        )
    threads = given.get("threads")
    if threads is not None and not 1 <= threads <= _MOST_THREADS:
        misuse(f"--threads: expected 1 to {_MOST_THREADS}, got {threads}")


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse(names: list[str], why: str) -> None:
    if names:
        misuse(f"--{names[0].replace('_', '-')}: {why}")
