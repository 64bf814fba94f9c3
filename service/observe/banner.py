"""The lines printed when the server is ready: what is served, with which kernels, and a call to copy and paste."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING

from fused_mlp.kernels import KernelInfo
from fused_mlp.service.settings.settings import join_address

if TYPE_CHECKING:
    from fused_mlp.service.app import Service

_DEFAULT_TARGET = "127.0.0.1:8001"  # of the commands that call a server
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def banner(service: Service) -> str:
    settings, models = service.settings, service.catalog.models()
    target = join_address(settings.host, service.grpc_port)
    lines = [
        f"fused-mlp {package_version('fused-mlp')}: serving the {settings.variant} variant",
        f"  gRPC     {target} ({service.front.name} front{', TLS' if settings.tls_certificate else ''})",
        f"  metrics  http://{join_address(settings.metrics_host, service.metrics_port)}/metrics",
        f"  live     http://{join_address(_reached(settings.metrics_host), service.metrics_port)}/",
    ]
    if service.admin_port:
        lines.append(f"  admin    {join_address(settings.admin_host, service.admin_port)}")
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
        reached_at = join_address(_reached(settings.host), service.grpc_port)
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
