# SPDX-License-Identifier: Apache-2.0
"""Settings that were renamed. The old names work for one release: load_settings replaces them before it checks
anything, and the server logs a line for each at start."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fused_mlp.service.settings.limits import read_json

# Settings of 0.1 that are fields of FUSED_MLP_LIMITS now. Younger fields never had a variable of their own.
_MOVED_TO_LIMITS = (
    "max_message_bytes",
    "max_header_bytes",
    "max_concurrent_streams",
    "max_connections",
    "max_buffered_bytes",
    "max_output_bytes",
    "max_resets_per_s",
    "max_pings_per_s",
    "max_settings_per_s",
    "max_control_frames_per_s",
    "handshake_timeout_s",
    "receive_timeout_s",
    "send_timeout_s",
    "keepalive_s",
    "keepalive_timeout_s",
    "idle_timeout_s",
    "max_connection_age_s",
    "max_request_rows",
)
# By old name: the new one, or the path of a field in a JSON setting.
RENAMED = {
    "transport": "front",
    "front_loops": "loops",
    "allow_admin": "allow_load",
    "shadow_tolerance": "policy.*.shadow_tolerance",
    "on_mismatch": "policy.*.on_mismatch",
    **{name: f"limits.{name}" for name in _MOVED_TO_LIMITS},
}
# By setting: values that were renamed.
RENAMED_VALUES = {"backend": {"native": "cpu"}}
# By old name: the variable of another program that does the same.
FOREIGN = {"kernel_cache": "TRITON_CACHE_DIR"}
# Not settings any more. Their values are not read.
REMOVED = {
    "metrics": "metrics are always recorded",
    "workers": "the number of workers follows from the cores and FUSED_MLP_THREADS",
}
OLD_NAMES = (*RENAMED, *FOREIGN, *REMOVED)


@dataclass
class Given:
    """The settings of one source, the environment or the command line, by their new names."""

    values: dict[str, object]
    warnings: list[str] = field(default_factory=list)
    old_spellings: dict[str, str] = field(default_factory=dict)  # by new name: what the user wrote instead

    def json(self, name: str) -> dict[str, Any] | None:
        """The fields of a JSON setting; None when it cannot be read, which the check of the settings reports."""
        try:
            value = read_json(self.values.get(name, {}))
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


def replace_old_names(values: Mapping[str, object], *, options: bool) -> Given:
    """`values` come from command-line options or from variables, which decides how warnings spell names. If both names
    of a setting are given, the new one wins."""
    given = Given({name: value for name, value in values.items() if name not in OLD_NAMES})
    for old, path in RENAMED.items():
        if old in values:
            _rename(given, old, path, values[old], options)
    for name, renamed in RENAMED_VALUES.items():
        if (value := given.values.get(name)) in renamed:
            given.values[name] = renamed[str(value)]
            given.warnings.append(
                f"{_with_value(name, value, options)} is an old name that will go away: use {renamed[str(value)]}"
            )
    for old, variable in FOREIGN.items():
        if old in values:
            os.environ[variable] = str(values[old])
            given.warnings.append(
                f"{_spelled(old, options)} is an old name that will go away: use {variable}"
            )
    given.warnings += [
        f"{_spelled(old, options)} is ignored: {REMOVED[old]}" for old in values if old in REMOVED
    ]
    return given


def _rename(given: Given, old: str, path: str, value: object, options: bool) -> None:
    setting, *fields = path.split(".")
    wrote, use = _spelled(old, options), _spelled(setting, options)
    record = given.json(setting) if fields else given.values
    place: Any = record
    for name in fields[:-1]:
        place = place.setdefault(name, {}) if isinstance(place, dict) else None
    last = fields[-1] if fields else setting
    if not isinstance(place, dict) or last in place:
        where = f"the field {'.'.join(fields)} of {use}" if fields else use
        given.warnings.append(f"{wrote} is ignored: {where}, its new name, is set too")
        return
    place[last] = value
    if fields:
        given.values[setting] = record
        use = _with_value(setting, f"'{_as_json(fields, value)}'", options)
    given.old_spellings[path] = wrote
    given.warnings.append(f"{wrote} is an old name that will go away: use {use}")


def _as_json(fields: list[str], value: object) -> str:
    """The JSON a user would type for one field; `value` may be the text of a number."""
    try:
        nested: Any = json.loads(str(value))
    except ValueError:
        nested = str(value)
    for name in reversed(fields):
        nested = {name: nested}
    return json.dumps(nested)


def _with_value(name: str, value: object, options: bool) -> str:
    return f"{_spelled(name, options)}{' ' if options else '='}{value}"


def _spelled(name: str, option: bool) -> str:
    return f"--{name.replace('_', '-')}" if option else f"FUSED_MLP_{name.upper()}"
