# SPDX-License-Identifier: Apache-2.0
"""Settings come from FUSED_MLP_*, are checked, and cannot change afterwards."""

from pathlib import Path

import pydantic
import pytest

from fused_mlp.service.settings.docs import setting_docs
from fused_mlp.service.settings.environment import load_settings, unknown_variables
from fused_mlp.service.settings.limits import Limits
from fused_mlp.service.settings.settings import Settings, SettingsError


def test_defaults_bind_loopback_only() -> None:
    settings = load_settings()
    assert (settings.host, settings.metrics_host) == ("127.0.0.1", "127.0.0.1")
    assert (settings.grpc_port, settings.metrics_port) == (8001, 8002)
    assert settings.variant == "fused"
    assert settings.max_wait_us == 0


def test_environment_is_read_and_overrides_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_VARIANT", "unfused")
    monkeypatch.setenv("FUSED_MLP_QUEUE_ROWS", "77")
    settings = load_settings(queue_rows=78, grpc_port=None)
    assert settings.variant == "unfused"
    assert settings.queue_rows == 78
    assert settings.grpc_port == 8001


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VARIANT", "half"),
        ("GRPC_PORT", "70000"),
        ("MAX_BATCH_ROWS", "0"),
        ("MAX_WAIT_US", "-1"),
        ("DRAIN_DELAY_S", "1e99"),
        ("DRAIN_TIMEOUT_S", "inf"),
        ("DRAIN_TIMEOUT_S", "nan"),
        ("THREADS", "many"),
        ("FRONT", "pigeon"),
        ("LOG_FORMAT", "xml"),
    ],
)
def test_bad_value_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"FUSED_MLP_{name}", value)
    with pytest.raises(SettingsError) as failure:
        load_settings()
    text = str(failure.value)
    assert f"FUSED_MLP_{name}" in text
    assert repr(value) in text
    assert "\n" not in text


def test_settings_are_frozen() -> None:
    with pytest.raises(pydantic.ValidationError):
        load_settings().variant = "unfused"  # type: ignore[misc]


@pytest.mark.parametrize("record", [Settings, Limits])
def test_every_field_is_described(record: type[Settings | Limits]) -> None:
    assert all(doc.description for doc in setting_docs(record))


def test_there_are_few_settings() -> None:
    assert len(Settings.model_fields) <= 49


@pytest.mark.parametrize(("cores", "workers"), [(1, 2), (2, 2), (8, 8)])
def test_there_is_a_worker_for_each_core_and_two_at_least(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int
) -> None:
    monkeypatch.setattr("fused_mlp.kernels.cores.usable_cores", lambda: cores)
    assert load_settings().engine_workers == workers


def test_empty_variable_is_one_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_THREADS", "")
    monkeypatch.setenv("FUSED_MLP_TLS_KEY", "")
    settings = load_settings()
    assert (settings.threads, settings.tls_key) == (None, None)


@pytest.mark.parametrize("missing", ["tls_certificate", "tls_key", "tls_client_ca"])
def test_a_tls_file_that_cannot_be_read_is_named(missing: str, tmp_path: Path) -> None:
    (tmp_path / "there.pem").touch()
    files = dict.fromkeys(("tls_certificate", "tls_key", "tls_client_ca"), tmp_path / "there.pem")
    load_settings(**files)
    gone = tmp_path / "gone.pem"
    with pytest.raises(SettingsError) as failure:
        load_settings(**(files | {missing: gone}))
    assert str(failure.value) == f"FUSED_MLP_{missing.upper()}={str(gone)!r}: No such file or directory"


@pytest.mark.parametrize("given", ["tls_certificate", "tls_key", "tls_client_ca"])
def test_half_of_tls_is_refused_rather_than_served_in_plain_text(given: str) -> None:
    with pytest.raises(SettingsError, match=f"FUSED_MLP_{given.upper()} is set without") as failure:
        load_settings(**{given: "some.pem"})
    assert "\n" not in str(failure.value)


def test_variable_that_nothing_reads_is_named_with_the_one_that_was_meant() -> None:
    environ = dict.fromkeys(
        (
            "FUSED_MLP_VARIENT",
            "FUSED_MLP_VARIANT",
            "FUSED_MLP_TARGET_CA",
            "FUSED_MLP_ISA",
            "FUSED_MLP_CORES",
            "HOME",
        ),
        "x",
    )
    assert unknown_variables(environ) == [
        "FUSED_MLP_VARIENT is not a setting; did you mean FUSED_MLP_VARIANT?"
    ]


@pytest.mark.parametrize(
    "service", ["FUSED_MLP", "FUSED_MLP_METRICS", "FUSED_MLP_GRPC", "FUSED_MLP_CANARY_2"]
)
def test_variables_that_kubernetes_makes_of_services_are_no_settings(
    monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    for rest, value in {
        "PORT": "tcp://10.0.0.7:8002",
        "PORT_8002_TCP": "tcp://10.0.0.7:8002",
        "PORT_8002_TCP_ADDR": "10.0.0.7",
        "PORT_8002_TCP_PORT": "8002",
        "PORT_8002_TCP_PROTO": "tcp",
        "SERVICE_HOST": "10.0.0.7",
        "SERVICE_PORT": "8002",
        "SERVICE_PORT_METRICS": "8002",
    }.items():
        monkeypatch.setenv(f"{service}_{rest}", value)
    settings = load_settings()
    assert (settings.grpc_port, settings.metrics_port) == (8001, 8002)
    if f"{service}_PORT" in ("FUSED_MLP_METRICS_PORT", "FUSED_MLP_GRPC_PORT"):
        (warning,) = settings.warnings
        assert warning.startswith(
            f"{service}_PORT=tcp://10.0.0.7:8002 is ignored: Kubernetes sets it for a Service"
        )
        assert "enableServiceLinks: false" in warning
    else:
        assert settings.warnings == ()


def test_a_port_that_is_one_is_taken_beside_service_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_METRICS_PORT", "9002")
    monkeypatch.setenv("FUSED_MLP_METRICS_SERVICE_PORT", "8002")
    assert load_settings().metrics_port == 9002
    monkeypatch.setenv("FUSED_MLP_METRICS_PORT", "10.0.0.7:8002")
    with pytest.raises(SettingsError, match="FUSED_MLP_METRICS_PORT"):
        load_settings()
