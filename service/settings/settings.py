# SPDX-License-Identifier: Apache-2.0
"""All settings of the service, in one frozen record read from FUSED_MLP_* variables. The descriptions here are the
source of `fused-mlp serve --help` and of the tables in docs/operations/settings.md."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from fused_mlp.kernels import cores
from fused_mlp.models.quantization import Precision
from fused_mlp.models.repository import check_name
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.settings.arms import Ratio
from fused_mlp.service.settings.limits import Limits, read_json
from fused_mlp.service.settings.old_names import OLD_NAMES, replace_old_names
from fused_mlp.service.settings.policy import ALL_MODELS, Policy
from fused_mlp.service.variant import Variant

ENV_PREFIX = "FUSED_MLP_"
# Variables that the client commands and the kernels read.
_OTHER_VARIABLES = (*(ENV_PREFIX + rest for rest in ("TARGET", "ISA", "LIBCUDA")), cores.VARIABLE)
# What Kubernetes sets for each Service of the namespace: one named fused-mlp-metrics makes FUSED_MLP_METRICS_PORT.
_SERVICE_LINK = re.compile(
    rf"{ENV_PREFIX}(\w+_)?((SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_[A-Z]+(_(ADDR|PORT|PROTO))?)=|PORT=[a-z]+://)"
)
DEMO_REPOSITORY = Path(__file__).resolve().parents[2] / "models" / "demo"

Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]


class SettingsError(Exception):
    """A setting has a value that cannot be used. The text is one readable line."""


# The headings of --help and of the tables, by the field each begins with.
GROUPS = {
    "host": "Where it listens",
    "model_repository": "What it serves, and how",
    "variant": "Which variant answers",
    "max_batch_rows": "Batching and limits",
    "allow_load": "Operation",
}


class CallerFiles(BaseModel):
    """One caller per line: service/access/callers.py. None: every caller is allowed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    admin: Path | None = Field(default=None, description="who may use the admin port, load and unload")
    metrics: Path | None = Field(default=None, description="who may read the metrics port")


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    # Where it listens
    host: str = Field("127.0.0.1", description="address of the gRPC port and of the REST port")
    grpc_port: Port = Field(8001, description="gRPC port; 0 picks a free one and prints it")
    rest_port: Port | Literal["off"] = Field(
        8000,
        description="native front: port of REST (the Open Inference Protocol over HTTP), on the same address; 0 picks "
        "a free one; off: none; docs/clients/rest.md",
    )
    cors_origins: str = Field(
        "",
        description="origins whose pages may call the REST port from a browser, separated by commas, such as "
        "https://a.example; * for all; default: none",
    )
    metrics_host: str = Field("127.0.0.1", description="address of the metrics port")
    metrics_port: Port = Field(
        8002,
        description="port of the live page, /metrics, /status.json, /healthz and /readyz; 0 picks a free one",
    )
    admin_host: str = Field("127.0.0.1", description="address of the admin port")
    admin_port: Port = Field(
        0, description="port of the admin service, which changes policies and versions at run time; 0: off"
    )
    front: Literal["auto", "native", "python"] = Field(
        "auto",
        description="what speaks gRPC: native (C++) or python (grpc.aio); auto takes native where it was built",
    )
    loops: int | None = Field(
        None, ge=1, le=256, description="native front: event-loop threads; default: one per usable core"
    )
    tls_certificate: Path | None = Field(
        None,
        description="PEM certificate chain; when set, the gRPC, REST and admin ports are served over TLS",
    )
    tls_key: Path | None = Field(None, description="PEM private key of the certificate")
    tls_client_ca: Path | None = Field(
        None,
        description="PEM authorities; when set, a client must have a certificate that one of them signed",
    )
    tls_crl: Path | None = Field(
        None,
        description="native front: PEM revocation lists of those authorities; all must be listed and current",
    )
    callers: CallerFiles = Field(
        CallerFiles(),
        description="files that list the callers of the admin port, of load and unload, and of the metrics port, "
        'as JSON: {"admin": "/etc/fused-mlp/admin", "metrics": "/etc/fused-mlp/metrics"}; docs/operations/tls.md',
    )
    metrics_tls: bool = Field(False, description="serve the metrics port over TLS, with the same certificate")

    # What it serves, and how
    model_repository: Annotated[str, BeforeValidator(os.fspath)] = Field(
        str(DEMO_REPOSITORY),
        min_length=1,
        description="folder, or URL such as s3://bucket/models, of <model>/<version>/ with model.json and "
        "model.safetensors; several are separated by commas; docs/operations/reload.md",
    )
    model_name: str | None = Field(
        None,
        description="name of the model, if its files are directly in the repository; default: the folder's name",
    )
    repository_cache: Path | None = Field(
        None,
        description="folder that keeps what is fetched from URLs; default: ~/.cache/fused-mlp/repositories",
    )
    load: Literal["eager", "lazy"] = Field(
        "eager", description="eager: load all models at the start; lazy: each with the first request for it"
    )
    max_loaded_bytes: int | None = Field(
        None,
        ge=1,
        description="with lazy loading: most bytes of kernels at once; the least recently used versions are unloaded "
        "to make room; default: no limit",
    )
    reload: str = Field(
        "off",
        description="follow changes in the repository: off, signal (SIGHUP), poll (every 10 s), poll:60, or watch "
        "(inotify); docs/operations/reload.md",
    )
    reload_settle_s: float = Field(
        5.0,
        ge=0,
        le=3600,
        description="a new version without a hash of its weights is loaded once its files are unchanged for this long",
    )
    device: str = Field(
        "auto",
        description="where kernels run: auto, cpu, cuda (of several GPUs each model is on the one with the most free "
        "memory), cuda:1, or cuda:all (each model on every GPU)",
    )
    backend: str = Field(
        "auto", description="name of the fused kernel; auto takes the best that passes its check"
    )
    tf32: bool = Field(
        False,
        description="on a GPU, multiply float32 models in TF32: faster, 10 bits of mantissa instead of 23",
    )
    precision: Precision = Field(
        "float32",
        description="keep the weights of float32 models in bfloat16 or int8, except of layers where that changes a "
        "row's outputs by more than 5 %; per model in FUSED_MLP_POLICY",
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="threads of one kernel call; default: one per usable core (affinity, CPU quota, FUSED_MLP_CORES)",
    )

    # Which variant answers
    variant: Variant = Field(
        "fused",
        description="which variant answers requests: fused, or unfused (eager PyTorch layers, to compare with)",
    )
    split: Ratio = Field(0.0, description="share of requests that the other variant answers, from 0 to 1")
    allow_override: bool = Field(False, description="let a request name its variant")
    shadow: Ratio = Field(
        0.0,
        description="share of batches that are run again on the other variant, after they were answered, to compare "
        "the outputs",
    )
    policy: dict[str, Policy] = Field(
        {},
        description='the four above, and more, by model or for all ("*"), as JSON: {"digits": '
        '{"variant": "unfused", "split": 0.1}, "*": {"on_mismatch": "unfused"}}; docs/ab/index.md lists the fields',
    )

    policy_file: Path | None = Field(
        None,
        description="file that keeps policies changed at run time; the server reads it again when it changes; "
        "default: policy.json in the model repository, or in the cache of a URL",
    )

    # Batching and limits
    max_batch_rows: Count = Field(
        256, description="most rows in one batch; a larger request is a batch of its own"
    )
    max_wait_us: int = Field(
        0,
        ge=0,
        le=10_000_000,
        description="how long the first request of a batch may wait for others to join it",
    )
    queue_rows: Count = Field(
        8192, description="rows that may wait for each version and variant of a model; more are refused"
    )
    limits: Limits = Field(
        Limits(),
        description="limits of requests, connections, frames and timeouts, as JSON: "
        '{"max_connections": 5000, "idle_timeout_s": 300}; docs/operations/settings.md lists the fields',
    )
    drain_delay_s: float = Field(
        0.0,
        ge=0,
        le=3600,
        description="on SIGTERM, how long to go on serving while health says NOT_SERVING, so that balancers stop "
        "sending first; about 5 on Kubernetes",
    )
    drain_timeout_s: float = Field(
        15.0,
        ge=0,
        le=3600,
        description="after that delay, how long accepted requests may take before the exit",
    )

    # Operation
    allow_load: bool = Field(False, description="let clients load and unload models over gRPC")
    reflection: bool = Field(True, description="serve gRPC reflection")
    log_format: Literal["text", "json"] = Field("text", description="text for people, json for machines")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lines below this level are not logged"
    )

    _warnings: tuple[str, ...] = PrivateAttr(())

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if re.fullmatch(r"auto|cpu|cuda(:\d{1,3}|:all)?", value, re.ASCII) is None:
            raise ValueError("expected auto, cpu, cuda, cuda:N or cuda:all")
        return value

    @field_validator("reload")
    @classmethod
    def _known_reload(cls, value: str) -> str:
        if re.fullmatch(r"off|signal|watch|poll(:(?=.*[1-9])\d{1,5}(\.\d{1,3})?)?", value, re.ASCII) is None:
            raise ValueError("expected off, signal, poll, poll:60 (seconds) or watch")
        return value

    @property
    def reload_interval_s(self) -> float:
        """Of polling."""
        return float(self.reload.partition(":")[2] or 10)

    @field_validator("policy", "limits", "callers", mode="before")
    @classmethod
    def _read_json(cls, value: Any) -> Any:
        return read_json(value)

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        """A certificate without its key, or the reverse, must not end in plain text."""
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
        if self.tls_crl is not None and self.tls_client_ca is None:
            raise ValueError(
                f"{ENV_PREFIX}TLS_CRL is set without {ENV_PREFIX}TLS_CLIENT_CA, whose list it is"
            )
        if self.metrics_tls and self.tls_certificate is None:
            raise ValueError(
                f"{ENV_PREFIX}METRICS_TLS is set without {ENV_PREFIX}TLS_CERTIFICATE and _TLS_KEY"
            )
        for name in _TLS_FILES:
            _check_readable(name, getattr(self, name))
        for name in CallerFiles.model_fields:
            _check_readable(f"callers.{name}", getattr(self.callers, name))
        return self

    @model_validator(mode="after")
    def _check_cores(self) -> Self:
        cores.usable_cores()
        return self

    @model_validator(mode="after")
    def _check_loading(self) -> Self:
        if self.max_loaded_bytes is not None and self.load != "lazy":
            raise ValueError(
                f"{ENV_PREFIX}MAX_LOADED_BYTES is set without {ENV_PREFIX}LOAD=lazy: all models are loaded at start"
            )
        return self

    @model_validator(mode="after")
    def _check_repositories(self) -> Self:
        if not self.repositories:
            raise ValueError(
                f"{ENV_PREFIX}MODEL_REPOSITORY={self.model_repository!r}: names no folder and no URL"
            )
        if self.model_name is not None:
            check_name(self.model_name)
        return self

    @model_validator(mode="after")
    def _check_policies(self) -> Self:
        """Those for all models and the settings of single fields beside what is said of a model by its name."""
        for name in (ALL_MODELS, *self.policy):
            try:
                self.policy_of(name)
            except InvalidInput as error:
                raise ValueError(f"{ENV_PREFIX}POLICY.{name}: {error}") from None
        return self

    @model_validator(mode="after")
    def _check_callers(self) -> Self:
        """Access to a port alone must not allow administration."""
        if self.callers.admin is not None:
            return self
        if self.admin_port and not is_loopback(self.admin_host):
            raise ValueError(
                f"{ENV_PREFIX}ADMIN_HOST={self.admin_host}: other machines can reach the admin port there; "
                f"say who may use it in {ENV_PREFIX}CALLERS, or take 127.0.0.1"
            )
        if self.allow_load and not is_loopback(self.host):
            raise ValueError(
                f"{ENV_PREFIX}ALLOW_LOAD=1: other machines can reach {self.host}, and could load and unload models; "
                f"say who may in {ENV_PREFIX}CALLERS"
            )
        return self

    @property
    def repositories(self) -> list[str]:
        return [place.strip() for place in self.model_repository.split(",") if place.strip()]

    @property
    def tls_files(self) -> list[Path]:
        return [path for name in _TLS_FILES if (path := getattr(self, name)) is not None]

    @property
    def default_policy(self) -> Policy:
        """The policy of models that FUSED_MLP_POLICY does not name."""
        policy = Policy(
            variant=self.variant,
            split=self.split,
            allow_override=self.allow_override,
            shadow=self.shadow,
            precision=self.precision,
        )
        return self.policy_of(ALL_MODELS, policy)

    def policy_of(self, model: str, default: Policy | None = None) -> Policy:
        named = self.policy.get(model)
        default = default or self.default_policy
        return default.changed(named.given()) if named else default

    @property
    def event_loops(self) -> int:
        """One per core by default, because a loop also computes."""
        return self.loops or cores.usable_cores()

    @property
    def engine_workers(self) -> int:
        """The threads that run what an event loop leaves to them: batches of more than about 100 us, and Python. At
        least two: one batch is formed and answered while the other computes."""
        return max(2, cores.usable_cores())

    @property
    def warnings(self) -> tuple[str, ...]:
        """Lines for the log: old names that were used, and variables that nothing reads."""
        return self._warnings


_TLS_FILES = ("tls_certificate", "tls_key", "tls_client_ca", "tls_crl")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_readable(name: str, path: Path | None) -> None:
    """Before models are loaded, which takes longer. The front checks the contents."""
    if path is not None and not os.access(path, os.R_OK):  # not opened: a pipe can be read only once
        what = errno.EACCES if path.exists() else errno.ENOENT
        raise ValueError(f"{ENV_PREFIX}{name.upper()}={str(path)!r}: {os.strerror(what)}")


def join_address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def load_settings(**overrides: object) -> Settings:
    """Read the environment; `overrides` (from the command line) win, field by field in JSON settings. Raises
    SettingsError in one line."""
    known = {*Settings.model_fields, *OLD_NAMES}
    # An empty variable counts as not set: compose files and manifests write those.
    variables = {name: text for name, text in _variables(os.environ).items() if text and name in known}
    from_environment = replace_old_names(variables, options=False)
    from_options = replace_old_names({k: v for k, v in overrides.items() if v is not None}, options=True)
    values = from_environment.values | from_options.values
    for name in _JSON_RECORDS:
        variable, option = from_environment.json(name), from_options.json(name)
        if variable and option:
            values[name] = _merged(variable, option)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        old_spellings = from_environment.old_spellings | from_options.old_spellings
        raise SettingsError("; ".join(_problems(error, old_spellings))) from None
    settings._warnings = (
        *_hidden_by_links(os.environ),
        *unknown_variables(os.environ),
        *from_environment.warnings,
        *from_options.warnings,
    )
    return settings


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with our prefix, in any case, by the name of the setting."""
    ours = {
        name.upper(): text
        for name, text in environ.items()
        if name.upper().startswith(ENV_PREFIX) and not _SERVICE_LINK.match(f"{name}={text}")
    }
    return {name.removeprefix(ENV_PREFIX).lower(): text for name, text in ours.items()}


def _hidden_by_links(environ: Mapping[str, str]) -> list[str]:
    return [
        f"{name}={text} is ignored: Kubernetes made it of a Service, it is no setting; enableServiceLinks: false in "
        "the pod's spec keeps such variables away"
        for name, text in environ.items()
        if _SERVICE_LINK.match(f"{name}={text}")
        and name.removeprefix(ENV_PREFIX).lower() in Settings.model_fields
    ]


_JSON_RECORDS: dict[str, type[BaseModel]] = {"policy": Policy, "limits": Limits, "callers": CallerFiles}


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Both, with the fields of `second` in place of those of the same name, at any depth."""
    nested = {
        name: _merged(first[name], value)
        for name, value in second.items()
        if isinstance(value, dict) and isinstance(first.get(name), dict)
    }
    return first | second | nested


def _problems(error: ValidationError, old_spellings: Mapping[str, str]) -> list[str]:
    """One text for each value that cannot be used."""
    problems = []
    for item in error.errors():
        text = item["msg"].removeprefix("Value error, ")
        if not item["loc"]:  # concerns several settings: the text names them
            problems.append(text)
            continue
        setting, *inside = map(str, item["loc"])  # names inside JSON stay as they were written
        name = ".".join([ENV_PREFIX + setting.upper(), *inside])
        name = old_spellings.get(".".join([setting, *inside]), name)
        if item["type"] == "extra_forbidden":
            record = _JSON_RECORDS.get(setting, Settings)
            text = f"unknown; expected one of {', '.join(record.model_fields)}"
        separator = " " if name.startswith("--") else "="
        problems.append(f"{name}{separator}{item['input']!r}: {text[:1].lower() + text[1:]}")
    return problems


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that nothing reads, each as a line that names the nearest one that exists."""
    known = [ENV_PREFIX + name.upper() for name in Settings.model_fields]
    old = [ENV_PREFIX + name.upper() for name in OLD_NAMES]
    lines = []
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in (*known, *old) or name.startswith(_OTHER_VARIABLES):
            continue
        if _SERVICE_LINK.match(f"{name}={environ[name]}"):
            continue
        field = name.removeprefix(ENV_PREFIX).lower()
        close = get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        if field in Limits.model_fields:
            hint = f"; {field} is a field of {ENV_PREFIX}LIMITS"
        lines.append(f"{name} is not a setting{hint}")
    return lines
