# SPDX-License-Identifier: Apache-2.0
"""All settings of the service, in one frozen record; environment.py reads it from FUSED_MLP_* variables. The
descriptions are the source of `fused-mlp serve --help` and of the tables in docs/operations/settings.md."""

from __future__ import annotations

import errno
import os
import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from fused_mlp.kernels import cores
from fused_mlp.models.repository.repository import check_name
from fused_mlp.models.weights.tables import Mode
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.policy.fields import Ratio
from fused_mlp.service.policy.file import FILE_NAME
from fused_mlp.service.policy.policies import Policies
from fused_mlp.service.policy.policy import ALL_MODELS, Policy
from fused_mlp.service.settings.limits import Limits, read_json
from fused_mlp.variant import Variant

ENV_PREFIX = "FUSED_MLP_"
DEMO_REPOSITORY = Path(__file__).resolve().parents[2] / "models" / "demo"

Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]


class SettingsError(Exception):
    """A setting has an unusable value. The text is one line."""


# The headings of --help and of the tables, by the field each begins with.
GROUPS = {
    "host": "Where it listens",
    "model_repository": "What it serves, and how",
    "variant": "Which variant answers",
    "max_batch_rows": "Batching and limits",
    "allow_load": "Operation",
}


class CallerFiles(BaseModel):
    """One caller per line: service/access/callers.py; or the file of FUSED_MLP_KEYS. None: every caller is allowed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    admin: Path | None = None
    """who may use the admin port, load and unload"""
    metrics: Path | None = None
    """who may read the metrics port"""


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    # Where it listens
    host: str = "127.0.0.1"
    """address of the gRPC port and of the REST port"""
    grpc_port: Port = 8001
    """gRPC port; 0 picks a free one and prints it"""
    rest_port: Port | Literal["off"] = 8000
    """native front: port of REST (the Open Inference Protocol over HTTP), on the same address; 0 picks a free one; off:
    none; docs/clients/rest.md"""
    cors_origins: str = ""
    """origins whose pages may call the REST port from a browser, separated by commas, such as https://a.example; * for
    all; default: none"""
    metrics_host: str = "127.0.0.1"
    """address of the metrics port"""
    metrics_port: Port = 8002
    """port of the live page, /metrics, /status.json, /healthz and /readyz; 0 picks a free one"""
    admin_host: str = "127.0.0.1"
    """address of the admin port"""
    admin_port: Port = 0
    """port of the admin service, which changes policies and versions at run time; 0: off"""
    front: Literal["auto", "native", "python"] = "auto"
    """what speaks gRPC: native (C++) or python (grpc.aio); auto takes native where it was built"""
    loops: Annotated[int, Field(ge=1, le=256)] | None = None
    """native front: event-loop threads; default: one per usable core"""
    tls_certificate: Path | None = None
    """PEM certificate chain; when set, the gRPC, REST and admin ports are served over TLS"""
    tls_key: Path | None = None
    """PEM private key of the certificate"""
    tls_client_ca: Path | None = None
    """PEM authorities; when set, a client must have a certificate that one of them signed"""
    tls_crl: Path | None = None
    """native front: PEM revocation lists of those authorities; all must be listed and current"""
    callers: CallerFiles = CallerFiles()
    """files that list the callers of the admin port, of load and unload, and of the metrics port, as JSON: {"admin":
    "/etc/fused-mlp/admin", "metrics": "/etc/fused-mlp/metrics"}; docs/operations/tls.md"""
    keys: Path | None = None
    """file of callers with hashed keys, permissions and quotas; when set, every prediction and every look at a model
    needs a caller of the file; fused-mlp keys writes it; docs/operations/callers.md"""
    allowed_hosts: str = ""
    """public names under which the REST port and the metrics port are called without TLS or keys, separated by commas,
    such as models.example.org or *.example.org; * for all; docs/operations/callers.md"""
    metrics_tls: bool = False
    """serve the metrics port over TLS, with the same certificate"""

    # What it serves, and how
    model_repository: Annotated[str, BeforeValidator(os.fspath), Field(min_length=1)] = str(DEMO_REPOSITORY)
    """folder, or URL such as s3://bucket/models, of <model>/<version>/ with model.json and model.safetensors; several
    are separated by commas; docs/operations/reload.md"""
    model_name: str | None = None
    """name of the model, if its files are directly in the repository; default: the folder's name"""
    repository_cache: Path | None = None
    """folder that keeps what is fetched from URLs; default: ~/.cache/fused-mlp/repositories"""
    load: Literal["eager", "lazy"] = "eager"
    """eager: load all models at the start; lazy: each with the first request for it"""
    max_loaded_bytes: Annotated[int, Field(ge=1)] | None = None
    """with lazy loading: most bytes of kernels at once; the least recently used versions are unloaded to make room;
    default: no limit"""
    reload: str = "off"
    """follow changes in the repository: off, signal (SIGHUP), poll (every 10 s), poll:60, or watch (inotify);
    docs/operations/reload.md"""
    reload_settle_s: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """a new version without a hash of its weights is loaded once its files are unchanged for this long"""
    device: str = "auto"
    """where kernels run: auto, cpu, cuda (of several GPUs each model is on the one with the most free memory), cuda:1,
    or cuda:all (each model on every GPU)"""
    backend: str = "auto"
    """name of the fused kernel; auto takes the best that passes its check"""
    tf32: bool = False
    """on a GPU, multiply float32 models in TF32: faster, 10 bits of mantissa instead of 23"""
    tables: Mode = "map"
    """large embedding tables: map reads rows from the file as they are used, load reads all of a table into huge pages
    when its version is loaded"""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """threads of one kernel call; default: one per usable core (affinity, CPU quota, FUSED_MLP_CORES)"""

    # Which variant answers
    variant: Variant = "fused"
    """which variant answers requests: fused, or unfused (eager PyTorch layers, to compare with)"""
    split: Ratio = 0.0
    """share of requests that the other variant answers, from 0 to 1"""
    allow_override: bool = False
    """let a request name its variant"""
    shadow: Ratio = 0.0
    """share of batches that are run again on the other variant, after they were answered, to compare the outputs"""
    policy: dict[str, Policy] = {}
    """the four above, precision and more, by model or for all ("*"), as JSON: {"digits": {"variant": "unfused",
    "split": 0.1}, "*": {"on_mismatch": "unfused"}}; docs/ab/index.md lists the fields"""

    policy_file: Path | None = None
    """file that keeps policies changed at run time; the server reads it again when it changes; default: policy.json in
    the model repository, or in the cache of a URL"""

    # Batching and limits
    max_batch_rows: Count = 256
    """most rows in one batch; a larger request is a batch of its own"""
    max_wait_us: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """how long the first request of a batch may wait for others to join it"""
    queue_rows: Count = 8192
    """rows that may wait for each version and variant of a model; more are refused"""
    target_queue_ms: Annotated[int, Field(ge=0, le=3_600_000)] = 200
    """how long a request without a deadline may wait; what would wait longer is refused; 0: no limit but
    FUSED_MLP_QUEUE_ROWS"""
    limits: Limits = Limits()
    """limits of requests, connections, frames and timeouts, as JSON: {"max_connections": 5000, "idle_timeout_s": 300};
    docs/operations/settings.md lists the fields"""
    drain_delay_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """on SIGTERM, how long to go on serving while health says NOT_SERVING, so that balancers stop sending first; about
    5 on Kubernetes"""
    drain_timeout_s: Annotated[float, Field(ge=0, le=3600)] = 15.0
    """after that delay, how long accepted requests may take before the exit"""

    # Operation
    allow_load: bool = False
    """let clients load and unload models over gRPC"""
    reflection: bool = True
    """serve gRPC reflection"""
    audit_log: Path | None = None
    """file to which a line of JSON is appended for every administrative action; docs/operations/security.md"""
    log_format: Literal["text", "json"] = "text"
    """text for people, json for machines"""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """lines below this level are not logged"""

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
        """The interval of polling."""
        return float(self.reload.partition(":")[2] or 10)

    @field_validator("policy", "limits", "callers", mode="before")
    @classmethod
    def _read_json(cls, value: Any) -> Any:
        return read_json(value)

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        """A certificate without its key must not start a server without TLS."""
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
            raise ValueError(f"{ENV_PREFIX}TLS_CRL requires {ENV_PREFIX}TLS_CLIENT_CA")
        if self.metrics_tls and self.tls_certificate is None:
            raise ValueError(
                f"{ENV_PREFIX}METRICS_TLS is set without {ENV_PREFIX}TLS_CERTIFICATE and _TLS_KEY"
            )
        for name in _TLS_FILES:
            _check_readable(name, getattr(self, name))
        _check_readable("keys", self.keys)
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
        """Checks each model's policy together with the defaults that it inherits."""
        for name in (ALL_MODELS, *self.policy):
            try:
                self.policies.of(name)
            except InvalidInput as error:
                raise ValueError(f"{ENV_PREFIX}POLICY.{name}: {error}") from None
        return self

    @model_validator(mode="after")
    def _check_callers(self) -> Self:
        """A caller who can only reach a port must not be able to administer the server."""
        if self.callers.admin is not None or self.keys is not None:
            return self
        if self.admin_port and not is_loopback(self.admin_host):
            raise ValueError(
                f"{ENV_PREFIX}ADMIN_HOST={self.admin_host}: other machines can reach the admin port there; "
                f"say who may use it in {ENV_PREFIX}KEYS or in {ENV_PREFIX}CALLERS, or use 127.0.0.1"
            )
        if self.allow_load and not is_loopback(self.host):
            raise ValueError(
                f"{ENV_PREFIX}ALLOW_LOAD=1: other machines can reach {self.host}, and could load and unload models; "
                f"say who may in {ENV_PREFIX}KEYS or in {ENV_PREFIX}CALLERS"
            )
        return self

    @property
    def repositories(self) -> list[str]:
        return [place.strip() for place in self.model_repository.split(",") if place.strip()]

    @property
    def tls_files(self) -> list[Path]:
        return [path for name in _TLS_FILES if (path := getattr(self, name)) is not None]

    @property
    def policies(self) -> Policies:
        """The policies of the settings, without later changes."""
        base = Policy(
            variant=self.variant, split=self.split, allow_override=self.allow_override, shadow=self.shadow
        )
        return Policies(base, self.policy)

    def policy_path(self, root: Path) -> Path | None:
        """The policy file: in the first repository, or beside its folder `root` if that mirrors a store. None for the
        demo, which is part of the package."""
        if self.policy_file is not None:
            return self.policy_file
        place = self.repositories[0]
        if "://" in place:
            return root.with_name(f"{root.name}.{FILE_NAME}")
        return None if place == str(DEMO_REPOSITORY) else Path(place) / FILE_NAME

    @property
    def event_loops(self) -> int:
        """One per core by default, because a loop also computes."""
        return self.loops or cores.usable_cores()

    @property
    def engine_workers(self) -> int:
        """Threads for batches of more than about 100 us, and for Python. At least two: one batch is formed and answered
        while another computes."""
        return max(2, cores.usable_cores())

    @property
    def warnings(self) -> tuple[str, ...]:
        """Log lines about variables that the server ignores."""
        return self._warnings


_TLS_FILES = ("tls_certificate", "tls_key", "tls_client_ca", "tls_crl")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_readable(name: str, path: Path | None) -> None:
    """Fails before models are loaded, which takes longer. The front checks the contents."""
    if path is not None and not os.access(path, os.R_OK):  # access(), because a pipe can be read only once
        what = errno.EACCES if path.exists() else errno.ENOENT
        raise ValueError(f"{ENV_PREFIX}{name.upper()}={str(path)!r}: {os.strerror(what)}")


def join_address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
