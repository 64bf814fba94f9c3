"""Every knob of the service, in one frozen record read from FUSED_MLP_* variables. Descriptions here are
the single source of `fused-mlp serve --help` and of the table in the README."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from fused_mlp.service.catalog.policy import OnMismatch, Policy, PolicyChange, Ratio

ENV_PREFIX = "FUSED_MLP_"
# Read elsewhere, by the commands that call a server and by kernels; and what Kubernetes sets beside a Service
# named fused-mlp.
_OTHER_VARIABLES = tuple(ENV_PREFIX + rest for rest in ("TARGET", "ISA", "SERVICE_", "PORT"))
DEMO_REPOSITORY = Path(__file__).resolve().parents[2] / "models" / "demo"

Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]


class SettingsError(Exception):
    """A setting has a value that cannot be used. The text is one readable line."""


# The headings of --help and of the README's table, by the field each begins with.
GROUPS = {
    "host": "Where it listens",
    "model_repository": "What it serves, and how",
    "variant": "Which variant answers",
    "max_batch_rows": "Batching and limits",
    "allow_admin": "Operation",
}


class Settings(BaseSettings):
    # An empty variable is one that was not set: compose files and manifests write those.
    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, frozen=True, extra="ignore"
    )

    # Where it listens
    host: str = Field("127.0.0.1", description="address of the gRPC port")
    grpc_port: Port = Field(8001, description="gRPC port; 0 picks a free one and prints it")
    metrics_host: str = Field("127.0.0.1", description="address of the metrics port")
    metrics_port: Port = Field(
        8002, description="port of the live page, /metrics, /status.json, /healthz and /readyz; 0: any"
    )
    admin_host: str = Field("127.0.0.1", description="address of the admin port")
    admin_port: Port = Field(
        0, description="port of the admin service, which changes policies at run time; 0: off"
    )
    transport: Literal["auto", "python", "native"] = Field(
        "auto", description="the front: native (C++), python (grpc.aio), or native where it was built"
    )
    tls_certificate: Path | None = Field(
        None, description="PEM certificate chain; when set, gRPC is served over TLS"
    )
    tls_key: Path | None = Field(None, description="PEM private key of the certificate")
    tls_client_ca: Path | None = Field(
        None,
        description="PEM authorities; when set, a client must have a certificate that one of them signed",
    )
    front_loops: int | None = Field(
        None, ge=1, le=256, description="native front: event-loop threads; default: one per usable core"
    )

    # What it serves, and how
    model_repository: Path = Field(
        DEMO_REPOSITORY, description="folder of <model>/<version>/ with model.json and model.safetensors"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where kernels run")
    backend: str = Field(
        "auto", description="fused kernel by name; auto takes the best that passes its check"
    )
    tf32: bool = Field(
        False,
        description="on a GPU, multiply float32 models in TF32: faster, 10 bits of mantissa instead of 23",
    )
    kernel_cache: Path | None = Field(
        None, description="folder of compiled GPU kernels, may be read-only once warm; default: Triton's own"
    )
    threads: int | None = Field(
        None, ge=1, le=1024, description="threads of one kernel call; default: one per usable core"
    )
    workers: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="engine threads that run batches of kernels that need Python; default: 2",
    )

    # Which variant answers
    variant: Literal["fused", "unfused"] = Field(
        "fused", description="which variant answers requests: fused, or eager nn.Linear to compare with"
    )
    split: Ratio = Field(0.0, description="share of requests that the other variant answers, from 0 to 1")
    allow_override: bool = Field(False, description="let a request name its variant")
    shadow: Ratio = Field(
        0.0, description="share of batches that are run again on the other variant, after their answers"
    )
    shadow_tolerance: float | None = Field(
        None,
        gt=0,
        description="largest relative difference that is no mismatch; default: by the model's dtype",
    )
    on_mismatch: OnMismatch = Field(
        "log", description="what a mismatch does: log it, or also serve that model version unfused"
    )
    policy: Annotated[dict[str, PolicyChange], NoDecode] = Field(
        {},
        description='variant, split and the like by model, as JSON: {"digits": {"variant": "unfused", "split": 0.1}}',
    )

    # Batching and limits
    max_batch_rows: Count = Field(256, description="most rows in one kernel call")
    max_wait_us: int = Field(
        0, ge=0, le=10_000_000, description="how long a first request may wait for others to share its batch"
    )
    queue_rows: Count = Field(8192, description="rows that may wait per model and variant; more is refused")
    max_request_rows: Count = Field(4096, description="most rows in one request")
    max_concurrent_streams: Count = Field(1024, description="concurrent calls on one connection")
    max_message_bytes: int | None = Field(
        None, ge=1024, description="largest message; default: derived from the row limit and the widest model"
    )
    keepalive_s: float = Field(
        60.0, gt=0, description="ping a silent connection after this long, and close it when it stays silent"
    )
    max_connections: Count = Field(1024, description="native front: connections at once; more are closed")
    max_header_bytes: int = Field(
        16 << 10, ge=1024, le=1 << 20, description="native front: headers of one request"
    )
    max_output_bytes: int = Field(
        1 << 20, ge=1024, description="native front: answers waiting for one connection's peer to read"
    )
    max_buffered_bytes: int = Field(
        512 << 20, ge=1024, description="native front: request bytes waiting for the rest of their message"
    )
    max_resets_per_s: Count = Field(
        500, description="native front: calls one connection may reset in a second"
    )
    max_pings_per_s: Count = Field(100, description="native front: pings one connection may send in a second")
    max_settings_per_s: Count = Field(
        20, description="native front: SETTINGS one connection may send in a second"
    )
    max_control_frames_per_s: Count = Field(
        1000, description="native front: other frames without content, per connection and second"
    )
    handshake_timeout_s: float = Field(
        10.0, ge=0, description="native front: time for TLS and the first SETTINGS; 0: no limit"
    )
    receive_timeout_s: float = Field(
        20.0, ge=0, description="native front: time for the rest of a message that has begun; 0: no limit"
    )
    send_timeout_s: float = Field(
        20.0, ge=0, description="native front: how long a peer may leave its answers unread; 0: no limit"
    )
    keepalive_timeout_s: float = Field(
        20.0, ge=0, description="native front: silence after a ping that ends a connection; 0: no limit"
    )
    idle_timeout_s: float = Field(
        0.0, ge=0, description="native front: close a connection without calls; 0: never"
    )
    max_connection_age_s: float = Field(
        0.0, ge=0, description="native front: ask a connection to reconnect after this long; 0: never"
    )
    drain_timeout_s: float = Field(
        15.0, ge=0, description="on SIGTERM, how long accepted requests may take before the exit"
    )

    # Operation
    allow_admin: bool = Field(False, description="allow loading and unloading models over gRPC")
    reflection: bool = Field(True, description="serve gRPC reflection")
    metrics: bool = Field(
        True, description="record latency histograms and counts; 0 only to see what that costs"
    )
    log_format: Literal["text", "json"] = Field("text", description="log lines for people or for machines")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe line logged"
    )

    @field_validator("policy", mode="before")
    @classmethod
    def _read_policy(cls, value: Any) -> Any:
        """From a variable or an option it comes as text."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"expected JSON, got text that goes wrong at its character {error.pos + 1}"
            ) from None

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        """Half of a pair must never mean that plain text is served."""
        if (self.tls_certificate is None) != (self.tls_key is None):
            given, missing = (
                ("TLS_KEY", "TLS_CERTIFICATE") if self.tls_key else ("TLS_CERTIFICATE", "TLS_KEY")
            )
            raise ValueError(f"{ENV_PREFIX}{given} is set without {ENV_PREFIX}{missing}: TLS needs both")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError(
                f"{ENV_PREFIX}TLS_CLIENT_CA is set without {ENV_PREFIX}TLS_CERTIFICATE and _TLS_KEY: "
                "only TLS can ask clients for a certificate"
            )
        for name in ("tls_certificate", "tls_key", "tls_client_ca"):
            _check_readable(name, getattr(self, name))
        return self

    @property
    def default_policy(self) -> Policy:
        """Of models that FUSED_MLP_POLICY does not name."""
        return Policy(**{name: getattr(self, name) for name in Policy.model_fields})

    def policy_of(self, model: str, default: Policy | None = None) -> Policy:
        named = self.policy.get(model)
        default = default or self.default_policy
        return default.changed(named.given()) if named else default

    @property
    def loops(self) -> int:
        """One per core: a loop also computes."""
        from fused_mlp.kernels.cores import usable_cores  # noqa: PLC0415 - brings torch

        return self.front_loops or usable_cores()

    @property
    def engine_workers(self) -> int:
        """Two: one batch is formed and answered while the other computes."""
        return self.workers or 2


def _check_readable(name: str, path: Path | None) -> None:
    """Now, not after the models were loaded. What is in it is for the front to judge."""
    if path is not None and not os.access(path, os.R_OK):  # not opened: a pipe can be read once
        what = errno.EACCES if path.exists() else errno.ENOENT
        raise ValueError(f"{ENV_PREFIX}{name.upper()}={str(path)!r}: {os.strerror(what)}")


def join_address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def load_settings(**overrides: object) -> Settings:
    """Read the environment; `overrides` (from the command line) win. Raises SettingsError in one line."""
    try:
        return Settings(**{k: v for k, v in overrides.items() if v is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        problems = []
        for item in error.errors():
            if not item["loc"]:  # of several settings together: the text names them
                problems.append(item["msg"].removeprefix("Value error, "))
                continue
            setting, *inside = map(str, item["loc"])  # inside JSON, names are as they were written
            name = ".".join([ENV_PREFIX + setting.upper(), *inside])
            text = item["msg"].removeprefix("Value error, ")
            if item["type"] == "extra_forbidden":
                text = f"unknown; expected one of {', '.join(PolicyChange.model_fields)}"
            problems.append(f"{name}={item['input']!r}: {text[:1].lower() + text[1:]}")
        raise SettingsError("; ".join(problems)) from None


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that nothing reads, each as a line that names the nearest one that exists."""
    known = [ENV_PREFIX + name.upper() for name in Settings.model_fields]
    lines = []
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in known or name.startswith(_OTHER_VARIABLES):
            continue
        close = get_close_matches(name, known, 1)
        lines.append(f"{name} is not a setting" + (f"; did you mean {close[0]}?" if close else ""))
    return lines
