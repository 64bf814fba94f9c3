# SPDX-License-Identifier: Apache-2.0
"""The policies of all models as one record: those of the settings, and what was changed since. Knows nothing of files
and the engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.settings.policy import ALL_MODELS, Policy
from fused_mlp.service.settings.settings import Settings

# By model, and for all of them under ALL_MODELS: the fields that were named, as in FUSED_MLP_POLICY.
Changes = Mapping[str, Mapping[str, object]]


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

    def without(self, fields: Collection[str], model: str = "") -> Policies:
        """Some fields as they were before they were changed, of one model or of all."""
        names = [model] if model else list(self.changes)
        left = {
            name: {key: value for key, value in self.changes.get(name, {}).items() if key not in fields}
            for name in names
        }
        kept = {name: own for name, own in {**self.changes, **left}.items() if own}
        return Policies(self.settings, kept).checked()
