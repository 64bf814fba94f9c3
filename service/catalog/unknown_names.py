# SPDX-License-Identifier: Apache-2.0
"""What a policy names and is not there, or cannot answer: a file takes such names, because versions come and go. Told
in the log, by GetPolicy and as a metric."""

from __future__ import annotations

import logging
from collections.abc import Collection
from difflib import get_close_matches
from typing import NamedTuple

from fused_mlp.service.arm import LATEST, Arm, parse_arm
from fused_mlp.service.catalog.policies import Policies
from fused_mlp.service.catalog.records import ServedModel
from fused_mlp.service.catalog.table import ModelTable
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.settings.settings import Settings

log = logging.getLogger(__name__)

MOST_NAMED = 10  # with a line of their own in the log


class Unknown(NamedTuple):
    field: str
    text: str


class UnknownNames:
    """Tells each once, as long as it stays unknown."""

    def __init__(self, settings: Settings, table: ModelTable) -> None:
        self._settings = settings
        self._table = table
        self._told: dict[str, set[str]] = {}  # by model

    def tell(self, names: Collection[str]) -> None:
        """Of these models; after every change of policies and versions. That the default is another version than the
        policy says is an error."""
        lines = []
        for name in list(names):
            model = self._table.models.get(name)
            unknown = unknown_names(model) if model is not None and model.answering else []
            told = self._told.pop(name, set())
            for field, text in unknown:
                if text not in told:
                    level = logging.ERROR if field == "version" else logging.WARNING
                    lines.append((level, f"policy of {name}, {field}: {text}"))
            if unknown:
                self._told[name] = {text for _, text in unknown}
        for level, line in lines[:MOST_NAMED]:
            log.log(level, "%s", line)
        if len(lines) > MOST_NAMED:
            log.warning("and %d more names in policies are unknown", len(lines) - MOST_NAMED)

    def unserved(self, policies: Policies) -> list[str]:
        """Policies of models that are not served, a line for each."""
        served = self._table.models.copy()
        lines = []
        for name in sorted(policies.named - served.keys()):
            source = "FUSED_MLP_POLICY" if name in self._settings.policy else "the policy file"
            close = get_close_matches(name, served, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            lines.append(f"{source} names {name[:100]!r}, which is not served here{hint}")
        return lines

    def tell_unserved(self, policies: Policies) -> None:
        for line in self.unserved(policies)[:MOST_NAMED]:
            log.warning("%s", line)


def unknown_names(model: ServedModel) -> list[Unknown]:
    policy = model.policy
    if not policy.names_something:
        return []  # most of thousands of models, at each scrape
    unknown = [Unknown("version", text)] if (text := _default_problem(model)) else []
    there = {v.version for v in model.versions}
    chosen = {int(part) for part in policy.versions.split(",") if part.isdigit()}
    unknown += [Unknown("versions", f"there is no version {number}") for number in sorted(chosen - there)]
    unknown += [
        Unknown("labels", f"{label}: there is no version {number}")
        for label, number in policy.labels.items()
        if number not in there
    ]
    arms = {"arms": [arm for arm, _ in policy.shares]}
    if policy.canary is not None:
        arms["canary"] = [policy.canary.arm]
    if policy.shadow_arm:
        arms["shadow_arm"] = [parse_arm(policy.shadow_arm)]
    for field, named in arms.items():
        problems = ((arm, _arm_problem(model, arm, shadow=field == "shadow_arm")) for arm in named)
        unknown += [Unknown(field, f"{arm}: {problem}") for arm, problem in problems if problem]
    return unknown


def _default_problem(model: ServedModel) -> str:
    name = model.policy.version
    wanted, answers = model.named(name), model.default
    if name == LATEST or (wanted is not None and (wanted.answers or wanted.state == "LOADING")):
        return ""
    why = "is not there" if wanted is None else f"cannot answer ({wanted.reason})"
    return f"version {name} {why}: " + (
        f"version {answers.version} answers" if answers else "nothing answers"
    )


def _arm_problem(model: ServedModel, arm: Arm, *, shadow: bool) -> str:
    version = model.find_arm(arm)
    if version is not None and version.state == "LOADING":
        return ""
    return model.arm_problem(arm) or (model.shadow_problem(arm) if shadow else "")


def check_arms(model: ServedModel, fields: Collection[str]) -> None:
    """Of the fields that are named. Raises InvalidInput for a version or an arm that cannot answer."""
    policy = model.policy
    if "version" in fields and model.named(policy.version) is None and model.answering:
        raise InvalidInput(f"version: {model.name} has no version {policy.version!r}")
    if "versions" in fields and model.answering and not policy.selected([v.version for v in model.versions]):
        raise InvalidInput(f"versions: {model.name} has none of {policy.versions}")
    for arm, _ in policy.shares if "arms" in fields else ():
        if problem := model.arm_problem(arm):
            raise InvalidInput(f"arms: {arm} of {model.name} cannot answer: {problem}")
    if "canary" in fields and policy.canary:
        if problem := model.arm_problem(policy.canary.arm):
            raise InvalidInput(f"canary: {policy.canary.to} of {model.name} cannot answer: {problem}")
        if problem := model.canary_problem(policy.canary.arm):
            raise InvalidInput(f"canary: {problem}")
    if "shadow_arm" in fields and policy.shadow_arm:
        arm = parse_arm(policy.shadow_arm)
        if problem := model.arm_problem(arm) or model.shadow_problem(arm):
            raise InvalidInput(f"shadow_arm: {arm} of {model.name}: {problem}")


def check_labels(before: ServedModel, after: ServedModel) -> None:
    """Raises InvalidInput when a label goes, or its version does, that the policy uses: its traffic would move."""
    policy = after.policy
    used = {
        "version": policy.version,
        "shadow_arm": parse_arm(policy.shadow_arm).version if policy.shadow_arm else "",
    }
    used |= {f"arm {arm}": arm.version for arm, _ in policy.shares}
    if policy.canary is not None:
        used["canary"] = policy.canary.arm.version
    for where, name in used.items():
        if name and before.named(name) is not None and after.named(name) is None:
            raise InvalidInput(f"labels: {name!r} is used by {after.name} ({where}): change that first")
