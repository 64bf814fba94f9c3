"""The lines printed when the server is ready: what is served, with which kernels, and a call to copy and paste."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import version as package_version

from fused_mlp.kernels import KernelInfo
from fused_mlp.service.catalog.records import ServedModel
from fused_mlp.service.settings.settings import Settings, join_address

_DEFAULT_TARGET = "127.0.0.1:8001"  # of the commands that call a server
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def banner(
    settings: Settings,
    models: Sequence[ServedModel],
    front: str,
    *,
    grpc_port: int,
    metrics_port: int,
    admin_port: int,
) -> str:
    """The ports are those that were bound; admin_port 0: there is none."""
    target = join_address(settings.host, grpc_port)
    pages = "https" if settings.metrics_tls else "http"
    lines = [
        f"fused-mlp {package_version('fused-mlp')}: serving the {settings.variant} variant",
        f"  gRPC     {target} ({front} front{', TLS' if settings.tls_certificate else ''})",
        f"  metrics  {pages}://{join_address(settings.metrics_host, metrics_port)}/metrics",
        f"  live     {pages}://{join_address(_reached(settings.metrics_host), metrics_port)}/",
    ]
    if admin_port:
        lines.append(f"  admin    {join_address(settings.admin_host, admin_port)}")
    for model in models:
        for served in model.versions:
            name = f"{served.model}/{served.version}"
            if served.mlp is None:
                lines.append(f"  model    {name}: NOT SERVED, {served.reason}")
                continue
            lines.append(f"  model    {name}: {served.mlp.spec.summary()}, answers {served.variant}")
            lines += [f"           {_kernel(info)}" for info in served.kernels]
    examples = [m.name for m in models if m.default and m.default.mlp and m.default.mlp.example]
    if examples:
        reached_at = join_address(_reached(settings.host), grpc_port)
        options = "" if reached_at == _DEFAULT_TARGET else f" --target {reached_at}"
        options += " --tls" if settings.tls_certificate else ""
        lines.append(f"  try      {_command()} predict {examples[0]} --example{options}")
    return "\n".join(lines)


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
    """How this program was started, as the reader would type it from here."""
    path = os.path.relpath(sys.argv[0])
    if os.path.basename(path) != "fused-mlp" or shutil.which("fused-mlp") == os.path.abspath(path):
        return "fused-mlp"
    return os.path.abspath(path) if path.startswith("..") else path
