# SPDX-License-Identifier: Apache-2.0
"""The lines printed when the server is ready: what is served, with which kernels, and a call to copy and paste."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version as package_version

from fused_mlp.kernels import KernelInfo
from fused_mlp.service.catalog.records import ServedModel, ServedVersion
from fused_mlp.service.catalog.unknown_names import MAX_NAMED
from fused_mlp.service.settings.settings import Settings, join_address

_DEFAULT_TARGET = "127.0.0.1:8001"  # of the commands that call a server
MAX_LISTED = 12  # more versions than this are summarised
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def banner(
    settings: Settings,
    models: Sequence[ServedModel],
    front: str,
    *,
    grpc_port: int,
    rest_port: int,
    metrics_port: int,
    admin_port: int,
) -> str:
    """Takes the ports that were bound; rest_port or admin_port 0 means that the port is off."""
    target = join_address(settings.host, grpc_port)
    pages = "https" if settings.metrics_tls else "http"
    lines = [
        f"fused-mlp {package_version('fused-mlp')}: serving the {settings.variant} variant",
        f"  gRPC     {target} ({front} front{', TLS' if settings.tls_certificate else ''})",
        f"  metrics  {pages}://{join_address(settings.metrics_host, metrics_port)}/metrics",
        f"  live     {pages}://{join_address(_reached(settings.metrics_host), metrics_port)}/",
    ]
    if rest_port:
        scheme = "https" if settings.tls_certificate else "http"
        lines.insert(2, f"  REST     {scheme}://{join_address(settings.host, rest_port)}/v2")
    if admin_port:
        lines.append(f"  admin    {join_address(settings.admin_host, admin_port)}")
    versions = [v for model in models for v in model.versions]
    lines += _each(versions) if len(versions) <= MAX_LISTED else _summary(len(models), versions)
    examples = [m.name for m in models if m.default and m.default.example]
    if examples:
        reached_at = join_address(_reached(settings.host), grpc_port)
        options = "" if reached_at == _DEFAULT_TARGET else f" --target {reached_at}"
        options += " --tls" if settings.tls_certificate else ""
        lines.append(f"  try      {_command()} predict {examples[0]} --example{options}")
    return "\n".join(lines)


def _each(versions: Sequence[ServedVersion]) -> Iterator[str]:
    for served in versions:
        if not served.answers or served.spec is None:
            yield _not_served(served)
            continue
        when = ", on demand" if served.on_demand else ""
        precision = "" if served.precision == "float32" else f", {served.precision}"
        yield f"  model    {_name(served)}: {served.spec.summary()}{precision}, answers {served.variant}{when}"
        yield from (f"           {_kernel(info)}" for info in served.kernels)


def _summary(models: int, versions: Sequence[ServedVersion]) -> Iterator[str]:
    """Summarises the versions; only the first ones that are not served get a line each."""
    answering = [v for v in versions if v.answers]
    on_demand = sum(v.on_demand for v in answering)
    when = f", {on_demand:,} of them on demand" if on_demand else ""
    yield f"  models   {models:,}, of which {len(answering):,} versions are served{when}"
    variants = Counter(v.variant for v in answering)
    yield f"           answers {', '.join(f'{name}: {count:,}' for name, count in variants.most_common())}"
    broken = [v for v in versions if not v.answers]
    yield from map(_not_served, broken[:MAX_NAMED])
    if len(broken) > MAX_NAMED:
        yield f"           and {len(broken) - MAX_NAMED:,} more are not served, see /status.json?answers=no"


def _name(served: ServedVersion) -> str:
    return f"{served.model}/{served.version}"


def _not_served(served: ServedVersion) -> str:
    return f"  model    {_name(served)}: NOT SERVED, {served.reason}"


def _reached(host: str) -> str:
    """The address at which a client on this machine reaches a server that listens on `host`."""
    return _ANY_HOST.get(host, host)


def _kernel(info: KernelInfo) -> str:
    plural = "s" if info.threads != 1 else ""
    return (
        f"{info.variant:<7} {info.backend} kernel on {info.device}, {info.isa}, {info.threads} thread{plural}, "
        f"{info.strategy}"
    )


def _command() -> str:
    """The command that started this program, as a user would type it here."""
    path = os.path.relpath(sys.argv[0])
    if os.path.basename(path) != "fused-mlp" or shutil.which("fused-mlp") == os.path.abspath(path):
        return "fused-mlp"
    return os.path.abspath(path) if path.startswith("..") else path
