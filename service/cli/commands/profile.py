# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp profile` shows where a forward pass spends its time: eager, compiled and fused. Needs no server."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from fused_mlp.service.cli.failure import fail, misuse
from fused_mlp.service.cli.interruption import if_interrupted
from fused_mlp.service.cli.options import option
from fused_mlp.service.cli.output.progress import Bar, progress_bar
from fused_mlp.service.cli.output.result import check_folder, show, write_page

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fused_mlp.kernels.profile import Options, Profile, Sweep
    from fused_mlp.models import Activation, Mlp
    from fused_mlp.service.client.admin import AdminClient


_shape = partial(option, panel="What to profile")
_result = partial(option, panel="Results")
_swept = partial(option, panel="Sweep: where fusion pays")
_live = partial(option, panel="Trace a running server, in place of a model")


def command(
    context: typer.Context,
    *,
    model: Annotated[
        Path | None,
        typer.Argument(help="Version directory of a repository, or an ONNX file.", metavar="MODEL"),
    ] = None,
    dims: Annotated[
        str | None, _shape("Layer widths, separated by commas, in place of a model.", "784,512,256,10")
    ] = None,
    activation: Annotated[str, _shape("Activation after each layer but the last, with --dims.")] = "relu",
    gated: Annotated[
        bool, _shape("Gated hidden layers (GeGLU, SwiGLU), with --dims.", None, "--gated")
    ] = False,
    precision: Annotated[
        str, _shape("Precision of the weights, with --dims.", "float32|bfloat16|int8")
    ] = "float32",
    batch: Annotated[str, _shape("Batch sizes, separated by commas.", "1,8,64,512")] = "1,8,64,512",
    device: Annotated[str, _shape("Where to run it.", "cpu|cuda|cuda:N")] = "cpu",
    threads: Annotated[
        int | None, _shape("Threads of one call. If not given, one for each core.", "N")
    ] = None,
    variants: Annotated[
        str, _shape("Which of the three to run, separated by commas.", "eager,compile,fused")
    ] = "eager,compile,fused",
    expect: Annotated[
        str | None, _shape("Your guess of some counts, to compare with what is found.", "ops=7,launches=5")
    ] = None,
    budget: Annotated[
        float, _shape("Time to measure each variant at each batch size.", "SECONDS", min=0.01, max=60)
    ] = 0.3,
    html: Annotated[Path | None, _result("Write the report as one self-contained HTML page.", "FILE")] = None,
    trace_dir: Annotated[
        Path | None, _result("Write a Chrome/Perfetto trace and a flame graph for each variant.", "FOLDER")
    ] = None,
    as_json: Annotated[bool, _result("Print one JSON document, for programs.", None, "--json")] = False,
    sweep: Annotated[
        bool, _swept("Measure fused against eager over batch size and width.", None, "--sweep")
    ] = False,
    sweep_widths: Annotated[str, _swept("Widths of the sweep.", "N,N,...")] = "32,64,128,256,512,1024",
    sweep_batches: Annotated[
        str, _swept("Batch sizes of the sweep.", "N,N,...")
    ] = "1,2,4,8,16,32,64,128,256,512",
    sweep_file: Annotated[
        Path, _swept("Where its results are kept: an interrupted sweep goes on.", "FILE")
    ] = Path("fused-mlp-sweep.json"),
    live: Annotated[str | None, _live("Trace a running server: its admin port.", "HOST:PORT")] = None,
    seconds: Annotated[float, _live("How long to trace.", "SECONDS")] = 5.0,
    tls_ca: Annotated[Path | None, _live("Connect with TLS, and trust these roots.", "PEM")] = None,
    tls_cert: Annotated[Path | None, _live("Certificate of this client.", "PEM")] = None,
    tls_key: Annotated[Path | None, _live("Its key.", "PEM")] = None,
    token_file: Annotated[Path | None, _live("Token of this caller, in a file.", "FILE")] = None,
) -> None:
    """Profile an MLP: eager PyTorch, torch.compile and the fused kernel, side by side.

    fused-mlp profile --dims 784,512,256,10 --batch 1,64 --html report.html

    Or what a running server does with real traffic: fused-mlp profile --live 127.0.0.1:8003 --seconds 5"""
    refuse_misplaced(context)
    if live is not None:
        from fused_mlp.service.cli.commands.live_profile import profile_live

        folder = trace_dir or Path("traces")
        with _opened(live, (tls_ca, tls_cert, tls_key), token_file) as admin:
            profile_live(admin, seconds, folder, as_json)
        return
    # Silences the profiler's library, which reads this variable when torch is imported.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    batches = _numbers("batch", batch)
    widths, rows = _numbers("sweep-widths", sweep_widths), _numbers("sweep-batches", sweep_batches)
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", device):
        misuse(f"--device: expected cpu, cuda or cuda:N, got {device!r}")
    if (model is None) == (dims is None):
        misuse(
            "expected a MODEL or --dims, such as --dims 784,512,256,10; got "
            + ("neither" if dims is None else "both")
        )
    check_folder(html)
    check_folder(sweep_file if sweep else None)
    from fused_mlp.kernels.cores import usable_cores
    from fused_mlp.kernels.errors import KernelError
    from fused_mlp.kernels.profile import (
        PROFILED,
        Options,
        ProfileError,
        compare,
        equally_wide,
        parse_expectation,
        profile,
    )

    chosen = [name.strip() for name in variants.split(",")]
    if not chosen or any(name not in PROFILED for name in chosen):
        misuse(f"--variants: expected some of {', '.join(PROFILED)} by commas, got {variants!r}")
    try:
        guesses = parse_expectation(expect) if expect else {}
        mlp = _model(model, dims, activation, gated, precision)
        for width in widths if sweep else ():  # checked before minutes of measuring
            equally_wide(mlp.spec, width)
        options = Options(
            batches=batches,
            device=device,
            threads=threads or usable_cores(),
            variants=[name for name in PROFILED if name in chosen],
            budget_s=budget,
            trace_dir=trace_dir,
        )
        with progress_bar("profile") as bar:
            found = profile(mlp, options, _counted(bar, options))
        swept = _sweep(mlp, options.threads, widths, rows, sweep_file) if sweep else None
    except (ProfileError, KernelError, OSError) as error:
        fail(str(error))
    differences = compare(guesses, found.points)
    _write(found, swept, html, trace_dir, differences)
    from fused_mlp.service.reports.provenance import provenance

    def view() -> RenderableType:
        from rich.console import Group

        from fused_mlp.service.reports.profile.terminal import profile_view, sweep_view

        return Group(profile_view(found, differences), *([sweep_view(swept)] if swept else []))

    document = {**found.to_dict(), "expectations": differences, "sweep": swept, "made": provenance()}
    show(document, as_json, view)
    if not as_json:
        for written in (html, trace_dir):
            if written is not None:
                typer.echo(f"written: {written}")


def _opened(target: str, tls: tuple[Path | None, ...], token_file: Path | None) -> AdminClient:
    from fused_mlp.service.client import Tls
    from fused_mlp.service.client.admin import AdminClient
    from fused_mlp.service.client.channel import caller_metadata

    try:
        credentials = Tls(root_ca=tls[0], cert=tls[1], key=tls[2]) if any(tls) else None
        return AdminClient(target, tls=credentials, metadata=caller_metadata(token_file))
    except (OSError, ValueError) as error:  # an unreadable TLS file, a certificate without its key
        fail(str(error))


def _numbers(option: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 1 << 20 for part in parts):
        misuse(f"--{option}: expected whole numbers from 1 by commas, such as 1,8,64; got {text!r}")
    return list(dict.fromkeys(map(int, parts)))


def _model(path: Path | None, dims: str | None, activation: str, gated: bool, precision: str) -> Mlp:
    from fused_mlp.kernels.profile import random_mlp
    from fused_mlp.models import Activation, ModelLoadError, load
    from fused_mlp.models.weights.precision import PRECISIONS, check_precision, to_precision

    if path is not None:
        try:
            return load(path)
        except ModelLoadError as error:
            fail(str(error))
    widths = [int(part) for part in _parts(dims or "")]
    if activation not in get_args(Activation):
        misuse(f"--activation: expected one of {', '.join(get_args(Activation))}; got {activation!r}")
    if gated and len(widths) < 3:
        misuse(f"--gated: expected a hidden layer, such as --dims 768,3072,768; got --dims {dims}")
    if precision not in PRECISIONS:
        misuse(f"--precision: expected one of {', '.join(PRECISIONS)}; got {precision!r}")
    mlp = random_mlp(widths, cast("Activation", activation), gated)
    return to_precision(mlp, check_precision(precision))


def _parts(dims: str) -> list[str]:
    parts = [part.strip() for part in dims.split(",")]
    if len(parts) < 2 or not all(part.isdecimal() and 1 <= int(part) <= 1 << 20 for part in parts):
        misuse(f"--dims: expected at least two widths by commas, such as 784,512,256,10; got {dims!r}")
    return parts


def _counted(bar: Bar, options: Options) -> Callable[[str], None]:
    """Measures the limits; then builds each variant, times each batch size and traces each variant."""
    total = 1 + len(options.variants) + len(options.batches) * (1 + len(options.variants))
    done = itertools.count()

    def report(text: str) -> None:
        bar.say(text)
        bar.update(next(done), total)

    return report


def _sweep(mlp: Mlp, threads: int, widths: list[int], batches: list[int], path: Path) -> Sweep:
    from fused_mlp.kernels.profile import run_sweep

    note = f"what was measured is kept in {path}, and the same command goes on"
    with progress_bar("sweep") as bar, if_interrupted(note):
        return run_sweep(path, mlp, threads=threads, widths=widths, batches=batches, progress=bar.update)


def _write(
    found: Profile, swept: Sweep | None, html: Path | None, folder: Path | None, differences: Any
) -> None:
    if html is not None:
        from fused_mlp.service.reports.profile.html_report import html_report
        from fused_mlp.service.reports.provenance import provenance

        write_page(html, html_report(found, provenance(), differences, swept))
    if folder is not None:
        from fused_mlp.service.reports.profile.flame_graph import flame_graph

        for batch in found.batches:
            flames = {key: flame for key, flame in found.flames.items() if key.endswith(f"/{batch}")}
            scale = max((flame.us for flame in flames.values()), default=1.0)
            for key, flame in flames.items():
                path = folder / f"{key.replace('/', '-batch')}-flame.svg"
                write_page(path, flame_graph(flame, scale, key, alone=True))


_OF_LIVE = ("seconds", "tls_ca", "tls_cert", "tls_key", "token_file")
_OF_SWEEP = ("sweep_widths", "sweep_batches", "sweep_file")
_OF_DIMS = ("activation", "gated", "precision")
_WITH_LIVE = ("live", "trace_dir", "as_json", *_OF_LIVE)
_MAX_THREADS = 1024


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
    if threads is not None and not 1 <= threads <= _MAX_THREADS:
        misuse(f"--threads: expected 1 to {_MAX_THREADS}, got {threads}")


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse(names: list[str], why: str) -> None:
    if names:
        misuse(f"--{names[0].replace('_', '-')}: {why}")
