# SPDX-License-Identifier: Apache-2.0
"""What OTEL_* variables mean, as OpenTelemetry's specification has it: empty is unset, and nonsense is ignored."""

from __future__ import annotations

import pytest

from fused_mlp.service.observe.otel.environment import Tracing, read_tracing
from fused_mlp.service.settings.settings import SettingsError

GRPC = "http://localhost:4317"


def read(**variables: str) -> Tracing | None:
    return read_tracing(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": GRPC} | {f"OTEL_{k}": v for k, v in variables.items()}
    )


@pytest.mark.parametrize(
    "variables",
    [
        {"EXPORTER_OTLP_ENDPOINT": ""},
        {"SDK_DISABLED": "TRUE"},
        {"TRACES_EXPORTER": "none"},
        {"TRACES_SAMPLER": "always_off"},
        {"TRACES_SAMPLER": "traceidratio", "TRACES_SAMPLER_ARG": "0"},
    ],
)
def test_nothing_is_exported(variables: dict[str, str]) -> None:
    assert read(**variables) is None


def test_the_console_needs_no_endpoint() -> None:
    assert read_tracing({"OTEL_TRACES_EXPORTER": "console"}) == Tracing("stdout", "console")


def test_an_empty_variable_is_as_none() -> None:
    names = (
        "TRACES_SAMPLER",
        "TRACES_SAMPLER_ARG",
        "TRACES_EXPORTER",
        "SDK_DISABLED",
        "BSP_MAX_QUEUE_SIZE",
        "EXPORTER_OTLP_PROTOCOL",
        "EXPORTER_OTLP_TRACES_ENDPOINT",
        "EXPORTER_OTLP_CERTIFICATE",
    )
    assert read(**dict.fromkeys(names, " ")) == Tracing(GRPC, "grpc")


@pytest.mark.parametrize(
    ("endpoint", "protocol"),
    [(GRPC, "grpc"), ("http://localhost:4318", "http/protobuf"), ("https://collector", "http/protobuf")],
)
def test_the_port_tells_the_protocol(endpoint: str, protocol: str) -> None:
    tracing = read(EXPORTER_OTLP_ENDPOINT=endpoint)
    assert tracing is not None
    assert tracing.protocol == protocol


def test_variables_of_traces_take_precedence() -> None:
    tracing = read(EXPORTER_OTLP_TRACES_ENDPOINT="http://traces:4317", EXPORTER_OTLP_TRACES_PROTOCOL="GRPC")
    assert tracing == Tracing("http://traces:4317", "grpc")


def test_what_can_be_used_is_used() -> None:
    tracing = read(
        TRACES_SAMPLER="parentbased_traceidratio",
        TRACES_SAMPLER_ARG="0.25",
        BSP_SCHEDULE_DELAY="100",
        BSP_MAX_QUEUE_SIZE="7",
        BSP_MAX_EXPORT_BATCH_SIZE="8",
    )
    assert tracing == Tracing(GRPC, "grpc", 0.25, True, 0.1, 7, 8)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "-1"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_BSP_SCHEDULE_DELAY", "1e3"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "9" * 30),
    ],
)
def test_nonsense_is_removed_with_a_warning(
    variable: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": GRPC, variable: value}
    assert read_tracing(environment) == Tracing(GRPC, "grpc")
    assert variable not in environment  # the exporter would read it, too
    assert f"{variable} is ignored: expected " in caplog.text


def test_no_compression_is_the_default() -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": GRPC, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
    assert read_tracing(environment)
    assert "OTEL_EXPORTER_OTLP_COMPRESSION" not in environment


@pytest.mark.parametrize(
    "endpoint", ["collector", "collector:4317", "ftp://x", "http://", "http://[::1", "http://x:0"]
)
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(SettingsError, match="OTEL_EXPORTER_OTLP_ENDPOINT: expected a URL such as"):
        read(EXPORTER_OTLP_ENDPOINT=endpoint)


def test_a_password_is_not_told() -> None:
    tracing = read(EXPORTER_OTLP_ENDPOINT="http://user:secret@localhost:4318/otlp")
    assert tracing is not None
    assert tracing.endpoint == "http://localhost:4318/otlp"
    with pytest.raises(SettingsError) as refused:
        read(EXPORTER_OTLP_ENDPOINT="http://user:secret@localhost:99999")
    assert "secret" not in str(refused.value)
