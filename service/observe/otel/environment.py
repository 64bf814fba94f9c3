# SPDX-License-Identifier: Apache-2.0
"""Reads tracing settings from the standard OTEL_* variables. Imports nothing from OpenTelemetry, which is needed only
with an endpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from fused_mlp.service.settings.settings import SettingsError

log = logging.getLogger(__name__)

GRPC_PORT = 4317  # by convention; HTTP is on 4318
_OTLP, _OTLP_TRACES = "OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"  # the second takes precedence
_SAMPLER, _SAMPLER_ARG = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
_EXPORTER = "OTEL_TRACES_EXPORTER"
_DELAY, _QUEUE, _BATCH = (
    f"OTEL_BSP_{name}" for name in ("SCHEDULE_DELAY", "MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE")
)
# By sampler name: the share of requests sampled when the caller made no decision, and whether the caller's decision is
# followed.
_SAMPLERS: dict[str, tuple[float | None, bool]] = {
    "always_on": (1.0, False),
    "always_off": (0.0, False),
    "traceidratio": (None, False),
    "parentbased_always_on": (1.0, True),
    "parentbased_always_off": (0.0, True),
    "parentbased_traceidratio": (None, True),
}


@dataclass(frozen=True)
class Tracing:
    """How requests are sampled and exported; the exporter reads the other variables."""

    endpoint: str  # for the log: without a password
    protocol: Literal["grpc", "http/protobuf", "console"]
    ratio: float = 1.0
    parents_decide: bool = True
    delay_s: float = 5.0
    queue_size: int = 2048  # requests
    batch_size: int = 512  # spans in one message


def read_tracing(environment: MutableMapping[str, str] = os.environ) -> Tracing | None:
    """None: tracing is off. Unusable variables are removed from the environment with a warning, as OpenTelemetry
    demands: its exporters read variables too, and some raise. Raises SettingsError."""
    name, endpoint = _of_traces(environment, "ENDPOINT")
    exporter = environment.get(_EXPORTER, "").strip().lower()
    console = exporter == "console"
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if off or exporter == "none" or not (endpoint or console):
        return None
    address = urlsplit("stdout") if console else _address(name, endpoint)
    _require_files(environment)
    _remove_unusable(environment)
    ratio, parents_decide = _SAMPLERS[environment.get(_SAMPLER, "parentbased_always_on").lower()]
    if ratio is None:
        ratio = float(environment.get(_SAMPLER_ARG, "1"))
    if ratio == 0 and not parents_decide:
        return None
    protocol = _of_traces(environment, "PROTOCOL")[1].lower()
    grpc = protocol == "grpc" or (not protocol and address.port == GRPC_PORT)
    return Tracing(
        address._replace(netloc=address.netloc.rpartition("@")[2]).geturl(),
        "console" if console else "grpc" if grpc else "http/protobuf",
        ratio,
        parents_decide,
        int(environment.get(_DELAY, "5000")) / 1000,
        int(environment.get(_QUEUE, "2048")),
        int(environment.get(_BATCH, "512")),
    )


def _of_traces(environment: Mapping[str, str], name: str) -> tuple[str, str]:
    """The variable that takes precedence, and its value; an empty variable is ignored."""
    value = environment.get(_OTLP_TRACES + name, "").strip()
    return (
        (_OTLP_TRACES + name, value) if value else (_OTLP + name, environment.get(_OTLP + name, "").strip())
    )


def _address(name: str, endpoint: str) -> SplitResult:
    try:
        address = urlsplit(endpoint)
        if address.scheme in ("http", "https") and address.hostname and address.port != 0:
            return address
    except ValueError:  # no port, no IPv6 address
        pass
    hidden = endpoint.rpartition("@")[2]
    raise SettingsError(f"{name}: expected a URL such as http://localhost:{GRPC_PORT}, got {hidden!r}")


def _require_files(environment: Mapping[str, str]) -> None:
    """OpenTelemetry would ignore a missing file silently, and with it the check of certificates."""
    for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
        variable, path = _of_traces(environment, name)
        if path and not Path(path).is_file():
            raise SettingsError(f"{variable}: no such file: {path!r}")


def _remove_unusable(environment: MutableMapping[str, str]) -> None:
    for name in [name for name in environment if name.startswith("OTEL_")]:
        value = environment[name].strip()
        usable, expected = _RULES.get(name.replace(_OTLP_TRACES, _OTLP), (bool, "a value"))
        if value and not usable(value):
            log.warning("%s is ignored: expected %s, got %r", name, expected, value)
        environment[name] = value
        if not usable(value) or (name.endswith("_COMPRESSION") and value.lower() == "none"):
            del environment[name]  # the exporter over gRPC does not know "none", its default


def _between(least: float, most: float, kind: Callable[[str], float]) -> Callable[[str], bool]:
    def usable(text: str) -> bool:
        try:
            return least <= kind(text) <= most
        except ValueError:
            return False

    return usable


def _one_of(*names: str) -> Callable[[str], bool]:
    return lambda text: text.lower() in names


_MOST = 1_000_000
_COUNT = (_between(1, _MOST, int), f"a whole number from 1 to {_MOST}")
_DAY_MS, _DAY_S = 86_400_000, 86_400
# Variables, without "TRACES_", and their valid values.
_RULES: dict[str, tuple[Callable[[str], bool], str]] = {
    _EXPORTER: (
        lambda text: text.lower() == "console" or "otlp" in text.lower().split(","),
        "otlp, console or none",
    ),
    _SAMPLER: (_one_of(*_SAMPLERS), f"one of {', '.join(_SAMPLERS)}"),
    _SAMPLER_ARG: (_between(0, 1, float), "a number from 0 to 1"),
    _OTLP + "PROTOCOL": (_one_of("grpc", "http/protobuf"), "grpc or http/protobuf"),
    _OTLP + "COMPRESSION": (_one_of("gzip", "none"), "gzip or none"),
    _OTLP + "TIMEOUT": (_between(0.001, _DAY_S, float), f"seconds, at most {_DAY_S}"),
    _DELAY: (_between(1, _DAY_MS, int), f"milliseconds from 1 to {_DAY_MS}"),
    _QUEUE: _COUNT,
    _BATCH: _COUNT,
}
