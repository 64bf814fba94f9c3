# SPDX-License-Identifier: Apache-2.0
"""The policies of all models as one immutable record: the settings, and what was changed since. Knows neither files nor
the engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.policy.policy import ALL_MODELS, Policy

# Fields of policies by model, and for all models under ALL_MODELS, as in FUSED_MLP_POLICY.
FieldsByModel = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class Policies:
    """`base` and `settings` come from the settings. `changes` for all models override the settings of a model, and are
    overridden by its own changes."""

    base: Policy
    settings: Mapping[str, Policy]
    changes: FieldsByModel = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_default", self._merged(ALL_MODELS))

    @property
    def default(self) -> Policy:
        """The policy of a model that has none of its own."""
        policy: Policy = self.__dict__["_default"]
        return policy

    @property
    def named(self) -> set[str]:
        """The models that have a policy of their own."""
        return {*self.changes, *self.settings} - {ALL_MODELS}

    def of(self, model: str) -> Policy:
        # The same object for most of thousands of models.
        return self._merged(model) if model in self.changes or model in self.settings else self.default

    def _merged(self, model: str) -> Policy:
        merged: dict[str, object] = {}
        for name in (ALL_MODELS, model):
            if name in self.settings:
                merged.update(self.settings[name].given())
        for name in (ALL_MODELS, model):
            merged.update(self.changes.get(name, {}))
        return self.base.changed(merged)

    def with_changes(self, changes: FieldsByModel) -> Policies:
        """Raises InvalidInput if the layers of a model contradict each other, whether or not it is served."""
        policies = replace(self, changes={name: own for name, own in changes.items() if own})
        for name in sorted(policies.named):
            try:
                policies.of(name)
            except InvalidInput as error:
                raise InvalidInput(f"{name}: {error}") from None
        return policies

    def changed(self, changes: Mapping[str, object], model: str = "") -> Policies:
        """Sets fields of one model, or of all models. Raises InvalidInput."""
        checked = Policy().changed(changes)
        changes = {name: getattr(checked, name) for name in changes}
        if model:
            return replace(self, changes={**self.changes, model: {**self.changes.get(model, {}), **changes}})
        others = self._lacking(changes)
        return self.with_changes({**others, ALL_MODELS: {**others.get(ALL_MODELS, {}), **changes}})

    def without(self, fields: Collection[str], model: str = "") -> Policies:
        """Takes changes of fields back, of one model or of all models."""
        return self.with_changes(self._lacking(fields, model))

    def _lacking(self, fields: Collection[str], model: str = "") -> FieldsByModel:
        return {
            name: {key: value for key, value in own.items() if key not in fields or model not in ("", name)}
            for name, own in self.changes.items()
        }
