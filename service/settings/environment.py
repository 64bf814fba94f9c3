# SPDX-License-Identifier: Apache-2.0
"""Reads the settings from FUSED_MLP_* variables and options. Each unusable or unknown one is reported in one line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from fused_mlp.kernels import cores
from fused_mlp.service.policy.policy import Policy
from fused_mlp.service.settings.limits import Limits, read_json
from fused_mlp.service.settings.settings import ENV_PREFIX, CallerFiles, Settings, SettingsError

# Variables for the client commands and the kernels.
_OTHER_VARIABLES = (*(ENV_PREFIX + rest for rest in ("TARGET", "API_KEY", "ISA", "LIBCUDA")), cores.VARIABLE)
# Kubernetes sets variables for each Service of the namespace: one named fused-mlp-metrics sets FUSED_MLP_METRICS_PORT.
_SERVICE_LINK = re.compile(
    rf"{ENV_PREFIX}(\w+_)?((SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_[A-Z]+(_(ADDR|PORT|PROTO))?)=|PORT=[a-z]+://)"
)
_JSON_RECORDS: dict[str, type[BaseModel]] = {"policy": Policy, "limits": Limits, "callers": CallerFiles}


def load_settings(**overrides: object) -> Settings:
    """Reads the environment. `overrides` (from the command line) win, field by field in JSON settings. Raises
    SettingsError."""
    # An empty variable counts as unset: compose files and manifests write empty ones.
    variables = {k: v for k, v in _variables(os.environ).items() if v and k in Settings.model_fields}
    options = {k: v for k, v in overrides.items() if v is not None}
    values = variables | options
    for name in _JSON_RECORDS:
        variable, option = _json_fields(variables.get(name)), _json_fields(options.get(name))
        if variable and option:
            values[name] = _merged(variable, option)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError("; ".join(_problems(error))) from None
    settings._warnings = (*_ignored_links(os.environ), *unknown_variables(os.environ))
    return settings


def _json_fields(value: object) -> dict[str, Any]:
    """The fields of a JSON setting; none if it is unreadable, which validation reports."""
    try:
        read = read_json(value)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with our prefix in any letter case, by setting name."""
    ours = {
        name.upper(): text
        for name, text in environ.items()
        if name.upper().startswith(ENV_PREFIX) and not _SERVICE_LINK.match(f"{name}={text}")
    }
    return {name.removeprefix(ENV_PREFIX).lower(): text for name, text in ours.items()}


def _ignored_links(environ: Mapping[str, str]) -> list[str]:
    return [
        f"{name}={text} is ignored: Kubernetes sets it for a Service; enableServiceLinks: false in "
        "the pod's spec avoids such variables"
        for name, text in environ.items()
        if _SERVICE_LINK.match(f"{name}={text}")
        and name.removeprefix(ENV_PREFIX).lower() in Settings.model_fields
    ]


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Merges both at any depth; `second` wins."""
    nested = {
        name: _merged(first[name], value)
        for name, value in second.items()
        if isinstance(value, dict) and isinstance(first.get(name), dict)
    }
    return first | second | nested


def _problems(error: ValidationError) -> list[str]:
    """One line for each unusable value."""
    problems = []
    for item in error.errors():
        text = item["msg"].removeprefix("Value error, ")
        if not item["loc"]:  # about several settings, which the text names
            problems.append(text)
            continue
        setting, *inside = map(str, item["loc"])  # names inside JSON stay as they were written
        name = ".".join([ENV_PREFIX + setting.upper(), *inside])
        if item["type"] == "extra_forbidden":
            record = _JSON_RECORDS.get(setting, Settings)
            text = f"unknown; expected one of {', '.join(record.model_fields)}"
        problems.append(f"{name}={item['input']!r}: {text[:1].lower() + text[1:]}")
    return problems


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A line for each variable with our prefix that nothing reads, with the closest setting name."""
    known = [ENV_PREFIX + name.upper() for name in Settings.model_fields]
    lines = []
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in known or name.startswith(_OTHER_VARIABLES):
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
