# SPDX-License-Identifier: Apache-2.0
"""What the usual OTEL_* variables say about traces. Imports nothing of OpenTelemetry: without an endpoint none of it is
needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from fused_mlp.service.settings.settings import SettingsError

_ENDPOINT, _PROTOCOL = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"
_OF_TRACES = {
    _ENDPOINT: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    _PROTOCOL: "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
}
# By name: the share of requests without a decision of their caller's, and whether such a decision is followed.
# None: OTEL_TRACES_SAMPLER_ARG.
_SAMPLERS: dict[str, tuple[float | None, bool]] = {
    "always_on": (1.0, False),
    "always_off": (0.0, False),
    "traceidratio": (None, False),
    "parentbased_always_on": (1.0, True),
    "parentbased_always_off": (0.0, True),
    "parentbased_traceidratio": (None, True),
}
GRPC_PORT = 4317  # by convention; HTTP is on 4318


@dataclass(frozen=True)
class Tracing:
    """How requests are sampled and exported; what is not here the exporter reads by itself."""

    endpoint: str
    protocol: Literal["grpc", "http/protobuf"]
    ratio: float = 1.0
    parents_decide: bool = True
    delay_s: float = 5.0
    queue_size: int = 2048  # requests
    batch_size: int = 512  # spans in one message


def read_tracing(environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """None: nothing is to be exported. Raises SettingsError."""
    endpoint = environment.get(_OF_TRACES[_ENDPOINT]) or environment.get(_ENDPOINT, "")
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not endpoint or off or environment.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return None
    address = urlsplit(endpoint)
    if not address.hostname:
        raise SettingsError(
            f"{_ENDPOINT}: expected a URL such as http://localhost:{GRPC_PORT}, got {endpoint!r}"
        )
    protocol = environment.get(_OF_TRACES[_PROTOCOL]) or environment.get(_PROTOCOL, "")
    if protocol not in ("", "grpc", "http/protobuf"):
        raise SettingsError(f"{_PROTOCOL}: expected grpc or http/protobuf, got {protocol!r}")
    ratio, parents_decide = _sampler(environment)
    if ratio == 0 and not parents_decide:
        return None
    return Tracing(
        endpoint,
        "grpc" if protocol == "grpc" or (not protocol and address.port == GRPC_PORT) else "http/protobuf",
        ratio,
        parents_decide,
        _number(environment, "OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000,
        _number(environment, "OTEL_BSP_MAX_QUEUE_SIZE", 2048),
        _number(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512),
    )


def _sampler(environment: Mapping[str, str]) -> tuple[float, bool]:
    name = environment.get("OTEL_TRACES_SAMPLER", "parentbased_always_on")
    if name not in _SAMPLERS:
        raise SettingsError(f"OTEL_TRACES_SAMPLER: expected one of {', '.join(_SAMPLERS)}, got {name!r}")
    ratio, parents_decide = _SAMPLERS[name]
    if ratio is not None:
        return ratio, parents_decide
    text = environment.get("OTEL_TRACES_SAMPLER_ARG", "1")
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1
    if not 0 <= ratio <= 1:
        raise SettingsError(f"OTEL_TRACES_SAMPLER_ARG: expected a number from 0 to 1, got {text!r}")
    return ratio, parents_decide


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(f"{name}: expected a whole number of at least 1, got {text!r}")
    return int(text)
