# SPDX-License-Identifier: Apache-2.0
"""The wanted state of a fleet: how many replicas, with which settings. Does not know Ray."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from fused_mlp.service.settings.environment import load_settings
from fused_mlp.service.settings.settings import Settings, SettingsError

MAX_REPLICAS = 1000
# Replicas choose these: several may share a machine, and the controller reads their metrics over plain HTTP.
_OURS = (
    "grpc_port",
    "rest_port",
    "metrics_port",
    "admin_port",
    "admin_host",
    "metrics_host",
    "metrics_tls",
    "log_format",
)


class FleetError(Exception):
    """One line for the user: what was expected, what came, and what to do."""


@dataclass(frozen=True)
class Deployment:
    name: str
    fewest: int
    most: int
    settings: dict[str, str] = field(default_factory=dict)  # of `fused-mlp serve`, by name
    cpus: float = 1
    gpus: float = 0
    target_utilization: float = 0.7
    scale_down_after_s: float = 300
    folder: str | None = None  # for the files of endpoints.py
    revision: int = 1  # of this record
    generation: int = 1  # the first revision in which all replicas have these settings

    @property
    def drain_s(self) -> float:
        """How long a server may take from SIGTERM to its exit."""
        fields = ("drain_delay_s", "drain_timeout_s")
        return sum(float(self.settings.get(name, Settings.model_fields[name].default)) for name in fields)

    def changed(self, replicas: str | None, settings: dict[str, str]) -> Deployment:
        """Unnamed settings stay; an empty value removes one. A change of only the number of replicas restarts none of
        them; no change at all restarts each, which rereads the repository. Raises FleetError."""
        fewest, most = read_range(replicas) if replicas else (self.fewest, self.most)
        merged = {name: value for name, value in (self.settings | settings).items() if value}
        check_settings(merged)
        revision = self.revision + 1
        generation = revision if settings or not replicas else self.generation
        return replace(
            self, fewest=fewest, most=most, settings=merged, revision=revision, generation=generation
        )


def read_range(text: str) -> tuple[int, int]:
    """'2-8' -> (2, 8), '3' -> (3, 3). Raises FleetError."""
    match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", text.strip(), re.ASCII)
    fewest, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= fewest <= most <= MAX_REPLICAS:
        raise FleetError(
            f"--replicas: expected a number or a range such as 2-8, from 1 to {MAX_REPLICAS}, got {text!r}"
        )
    return fewest, most


def read_settings(given: list[str], repository: str | None = None) -> dict[str, str]:
    """NAME=VALUE each. Paths are resolved against this process's working directory. Raises FleetError."""
    settings = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip().lower().removeprefix("fused_mlp_").replace("-", "_")
        if not equals or name not in Settings.model_fields:
            raise FleetError(f"--set: expected NAME=VALUE with a setting of `fused-mlp serve`, got {text!r}")
        if name in _OURS:
            raise FleetError(f"--set {name}: replicas choose and report it themselves")
        settings[name] = value
    if repository is not None:
        # A folder must exist on all nodes under one path, and an actor has another working directory.
        settings["model_repository"] = repository if ":" in repository else str(Path(repository).absolute())
    return settings


def check_settings(settings: dict[str, str]) -> None:
    """Checks the settings as `fused-mlp serve` would, before anything is started. Raises FleetError."""
    try:
        checked = load_settings(**settings)
    except SettingsError as error:
        raise FleetError(str(error)) from None
    if checked.callers.metrics is not None:
        raise FleetError("callers.metrics: replicas read their own metrics port without a token")
