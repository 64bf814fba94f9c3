"""The few lines a person reads at start: what is served, with which kernel, and a call to copy and paste."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING

from kernels import KernelInfo

if TYPE_CHECKING:
    from service.app import Service


def banner(service: Service) -> str:
    settings, models = service.settings, service.catalog.models()
    lines = [
        f"fused-mlp {package_version('fused-mlp')}: serving the {settings.variant} variant",
        f"  gRPC     {settings.host}:{service.grpc_port} ({service.front.name} front)",
        f"  metrics  http://{settings.metrics_host}:{service.metrics_port}/metrics",
    ]
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
        target = "" if service.grpc_port == 8001 else f" --target {settings.host}:{service.grpc_port}"
        lines.append(f"  try      {_command()} predict {examples[0]} --example{target}")
    return "\n".join(lines)


def _kernel(info: KernelInfo) -> str:
    plural = "s" if info.threads != 1 else ""
    return (
        f"{info.variant:<7} {info.backend} kernel on {info.device}, {info.isa}, {info.threads} thread{plural}, "
        f"{info.strategy}"
    )


def _command() -> str:
    """How this program was started, as the reader would type it from here."""
    path = os.path.relpath(sys.argv[0]) if os.path.isabs(sys.argv[0]) else sys.argv[0]
    return path if os.path.basename(path) == "fused-mlp" else "fused-mlp"
