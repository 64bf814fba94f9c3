# SPDX-License-Identifier: Apache-2.0
"""The file of FUSED_MLP_KEYS: callers with what they may do and how much, and the proxies that may name callers. JSON;
keys are in it as SHA-256 only. Knows nothing of gRPC or HTTP."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import IPv6Address, ip_network
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fused_mlp.service import _engine
from fused_mlp.service.access.callers import NAMES
from fused_mlp.service.atomic_file import locked_folder, replace_file

MAX_CALLERS = 1000  # each has series in /metrics
KEY_PREFIX = "fmk_"  # lets scanners of source code find a key that leaked
_KEY_BYTES = 32
SHOWN_DIGITS = 12  # of a digest: names a key without helping to guess it

ActionName = Literal["predict", "describe", "admin", "metrics"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._@:/-]{1,64}$")]
Pattern = Annotated[str, Field(min_length=1, max_length=256)]
CertificateName = Annotated[str, Field(pattern=rf"^({'|'.join(NAMES)}).+$")]
Rate = Annotated[float, Field(gt=0.001, le=1e9)]


class CallerEntry(BaseModel):
    """At least one of sha256, certificates and subjects says how the caller is recognised."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    certificates: tuple[CertificateName, ...] = ()
    subjects: tuple[Pattern, ...] = ()
    actions: tuple[ActionName, ...] = ("predict", "describe")
    models: tuple[Pattern, ...] = ("*",)
    expires: AwareDatetime | None = None
    requests_per_s: Rate | None = None
    rows_per_s: Rate | None = None
    max_in_flight: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    weight: Annotated[float, Field(ge=0.01, le=100)] = 1.0

    @model_validator(mode="after")
    def _recognised(self) -> Self:
        if self.sha256 is None and not self.certificates and not self.subjects:
            raise ValueError("expected sha256, certificates or subjects, got none of them")
        return self

    @property
    def key_id(self) -> str:
        return (self.sha256 or "")[:SHOWN_DIGITS]

    @property
    def expired(self) -> bool:
        return self.expires is not None and self.expires <= datetime.now(UTC)

    def rules(self) -> _engine.CallerRules:
        actions = {*self.actions, *(("describe",) if "admin" in self.actions else ())}
        return _engine.CallerRules(
            name=self.name,
            actions=[_engine.Action[each] for each in sorted(actions)],
            models=self.models,
            expires_s=max(int(self.expires.timestamp()), 1) if self.expires else 0,  # 0: never
            requests_per_s=self.requests_per_s or 0.0,
            rows_per_s=self.rows_per_s or 0.0,
            max_in_flight=self.max_in_flight or 0,
            weight=self.weight,
            digest=bytes.fromhex(self.sha256 or ""),
            certificates=self.certificates,
            subjects=self.subjects,
        )


class KeyFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    callers: Annotated[tuple[CallerEntry, ...], Field(max_length=MAX_CALLERS)] = ()
    proxies: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for what, shown in (
            ("sha256", [each.sha256 for each in self.callers if each.sha256]),
            ("certificate", [name for each in self.callers for name in each.certificates]),
            ("subject", [pattern for each in self.callers for pattern in each.subjects]),
        ):
            if len(set(shown)) < len(shown):
                raise ValueError(f"callers: expected each {what} once")
        self.networks()
        return self

    @property
    def proxy_names(self) -> list[str]:
        return [each for each in self.proxies if each.startswith(NAMES)]

    def networks(self) -> list[tuple[bytes, int]]:
        """The other proxies: 16 bytes each, IPv4 as ::ffff:1.2.3.4, and how many bits count. Raises ValueError."""
        found = []
        for text in self.proxies:
            if text.startswith(NAMES):
                continue
            try:
                network = ip_network(text)
            except ValueError:
                expected = f"an address, a network such as 10.0.0.0/8, or {', '.join(NAMES)} and a name"
                raise ValueError(f"proxies: expected {expected}, got {text!r}") from None
            first = network.network_address
            if isinstance(first, IPv6Address):
                found.append((first.packed, network.prefixlen))
            else:
                found.append((bytes(10) + b"\xff\xff" + first.packed, 96 + network.prefixlen))
        return found


def read_key_file(path: Path) -> KeyFile:
    """Raises OSError, or ValueError in one line that shows no value of the file."""
    try:
        return KeyFile.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{path}: {_first_line(error)}") from None


def _first_line(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    text = first["msg"].removeprefix("Value error, ")
    return f"{place + ': ' if place else ''}{text[:1].lower()}{text[1:]}"


@contextlib.contextmanager
def changing(path: Path) -> Iterator[list[CallerEntry]]:
    """The callers of a file, to be changed; written when the block ends, in one step. Several commands at once take
    turns. Raises OSError or ValueError."""
    with locked_folder(path):
        before = read_key_file(path) if path.exists() else KeyFile()
        callers = list(before.callers)
        yield callers
        kept = [each.model_dump(mode="json", exclude_defaults=True) for each in callers]
        data = {"callers": kept, **({"proxies": list(before.proxies)} if before.proxies else {})}
        try:
            KeyFile.model_validate(data)
        except ValidationError as error:
            raise ValueError(f"{path}: {_first_line(error)}") from None
        replace_file(path, json.dumps(data, indent=2) + "\n", 0o600)


def new_key() -> tuple[str, str]:
    """A key of 256 random bits, and its SHA-256."""
    key = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    return key, hashlib.sha256(key.encode()).hexdigest()
