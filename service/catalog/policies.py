"""The policies of all models: those of the settings, and what was changed since, which a file keeps. Knows nothing of
the engine."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.settings.policy import ALL_MODELS, Policy, parse_policies
from fused_mlp.service.settings.settings import DEMO_REPOSITORY, Settings

FILE_NAME = "policy.json"
MOST_REMEMBERED = 100
# By model, and for all of them under ALL_MODELS: the fields that were named, as in FUSED_MLP_POLICY.
Changes = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class PolicyChanged:
    """Who changed what and when. `model` is empty for all of them."""

    at: float  # seconds since 1970
    by: str
    model: str
    what: str


@dataclass(frozen=True)
class Policies:
    """Immutable. A model has what the settings say of it, then the changes for all models, then its own."""

    settings: Settings
    changes: Changes = field(default_factory=dict)

    def __post_init__(self) -> None:
        changed = self.settings.default_policy.changed(self.changes.get(ALL_MODELS, {}))
        unchanged = changed == self.settings.default_policy
        object.__setattr__(self, "_default", self.settings.default_policy if unchanged else changed)

    @property
    def default(self) -> Policy:
        """Of models that nothing names."""
        policy: Policy = self.__dict__["_default"]
        return policy

    @property
    def named(self) -> set[str]:
        """The models that have a policy of their own."""
        return {*self.changes, *self.settings.policy} - {ALL_MODELS}

    def of(self, model: str) -> Policy:
        own = self.changes.get(model, {})
        if not own and model not in self.settings.policy:
            return self.default  # the same object: comparing thousands of them costs nothing
        for_all = self.changes.get(ALL_MODELS, {})
        return self.settings.policy_of(model).changed({**for_all, **own})

    def checked(self) -> Policies:
        """Raises InvalidInput when the layers of a model contradict each other, whether it is served now or not."""
        for name in sorted(self.named):
            try:
                self.of(name)
            except InvalidInput as error:
                raise InvalidInput(f"{name}: {error}") from None
        return self

    def changed(self, changes: Mapping[str, object], model: str = "") -> Policies:
        """Some fields of one model's policy, or of all. Raises InvalidInput."""
        checked = Policy().changed(changes)
        changes = {name: getattr(checked, name) for name in changes}
        if model:
            mine = {**self.changes.get(model, {}), **changes}
            return Policies(self.settings, {**self.changes, model: mine})
        kept = {
            name: {key: value for key, value in own.items() if key not in changes}
            for name, own in self.changes.items()
        }
        kept[ALL_MODELS] = {**self.changes.get(ALL_MODELS, {}), **changes}
        return Policies(self.settings, {name: own for name, own in kept.items() if own}).checked()


def policy_file(settings: Settings) -> Path | None:
    """Where changes are kept: in the first repository. None: nowhere, if that is a store, or the demo, which is part of
    the package."""
    if settings.policy_file is not None:
        return settings.policy_file
    place = settings.repositories[0]
    return None if "://" in place or place == str(DEMO_REPOSITORY) else Path(place) / FILE_NAME


def read_changes(path: Path) -> Changes:
    """None yet where there is no such file. Raises ValueError in one line, or OSError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        policies = parse_policies(text)
        return {
            name: {field: getattr(policy, field) for field in policy.model_fields_set}
            for name, policy in policies.items()
        }
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def write_changes(path: Path, changes: Changes) -> None:
    """In one step: a reader, and a start after a power failure, finds the old file or the new one. Raises OSError."""
    written = {
        name: Policy.model_validate(own).model_dump(mode="json", exclude_unset=True)
        for name, own in changes.items()
    }
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(written, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
