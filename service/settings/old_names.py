"""Settings that were renamed. The old names work for one release: load_settings replaces them before it checks
anything, and the server logs a line for each at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fused_mlp.service.settings.limits import Limits, read_json

# By old name: the new one, or a field of a JSON setting.
RENAMED = {
    "transport": "front",
    "front_loops": "loops",
    "allow_admin": "allow_load",
    **{name: f"limits.{name}" for name in Limits.model_fields},
}
# Not settings any more. Their values are not read.
REMOVED = {"metrics": "metrics are always recorded"}


@dataclass
class Given:
    """The settings of one source, the environment or the command line, by their new names."""

    values: dict[str, object]
    warnings: list[str] = field(default_factory=list)
    old_spellings: dict[str, str] = field(default_factory=dict)  # by new name: what the user wrote instead

    @property
    def limits(self) -> dict[str, object] | None:
        """The fields of `limits`; None when it cannot be read, which the check of the settings reports."""
        try:
            value = read_json(self.values.get("limits", {}))
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


def replace_old_names(values: Mapping[str, object], *, options: bool) -> Given:
    """`values` come from command-line options or from variables, which decides how warnings spell names. If both names
    of a setting are given, the new one wins."""
    given = Given({name: value for name, value in values.items() if name not in RENAMED | REMOVED})
    for old in [name for name in values if name in RENAMED]:
        new, _, limit = RENAMED[old].partition(".")
        wrote, use = _spelled(old, options), _spelled(new, options)
        place = given.limits if limit else given.values
        if place is None or (limit or new) in place:
            where = f"the field {limit} of {use}" if limit else use
            given.warnings.append(f"{wrote} is ignored: {where}, its new name, is set too")
            continue
        place[limit or new] = values[old]
        if limit:
            given.values["limits"] = place
            use += f"""{" " if options else "="}'{{"{limit}": {values[old]}}}'"""
        given.old_spellings[RENAMED[old]] = wrote
        given.warnings.append(f"{wrote} is an old name that will go away: use {use}")
    given.warnings += [
        f"{_spelled(old, options)} is ignored: {REMOVED[old]}" for old in values if old in REMOVED
    ]
    return given


def _spelled(name: str, option: bool) -> str:
    return f"--{name.replace('_', '-')}" if option else f"FUSED_MLP_{name.upper()}"
