# SPDX-License-Identifier: Apache-2.0
"""Names in a policy that mean nothing, or that cannot answer. A file may hold such names, because versions come and go;
they are in the log, in GetPolicy and on /metrics. A change by a caller with such names is refused."""

from __future__ import annotations

import logging
from collections.abc import Collection
from difflib import get_close_matches
from typing import NamedTuple

from fused_mlp.service.catalog.records import ServedModel
from fused_mlp.service.catalog.table import ModelTable
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.policy.arm import LATEST
from fused_mlp.service.policy.policies import Policies
from fused_mlp.service.settings.settings import Settings

log = logging.getLogger(__name__)

MAX_NAMED = 10  # with a line of their own in the log


class Unknown(NamedTuple):
    field: str
    text: str


class UnknownNames:
    """Logs each name once, as long as it stays unknown."""

    def __init__(self, settings: Settings, table: ModelTable) -> None:
        self._settings = settings
        self._table = table
        self._logged: dict[str, set[str]] = {}  # by model

    def log(self, names: Collection[str]) -> None:
        """Called with the models whose policies or versions changed. It is an error if the default is not the version
        that the policy names."""
        lines = []
        for name in list(names):
            model = self._table.models.get(name)
            unknown = unknown_names(model) if model is not None and model.answering else []
            logged = self._logged.pop(name, set())
            lines += [
                (
                    logging.ERROR if field == "version" else logging.WARNING,
                    f"policy of {name}, {field}: {text}",
                )
                for field, text in unknown
                if text not in logged
            ]
            if unknown:
                self._logged[name] = {text for _, text in unknown}
        for level, line in lines[:MAX_NAMED]:
            log.log(level, "%s", line)
        if len(lines) > MAX_NAMED:
            log.warning("and %d more names in policies are unknown", len(lines) - MAX_NAMED)

    def unserved(self, policies: Policies) -> list[str]:
        """A line for each model that a policy names and that is not served."""
        served = self._table.models.copy()
        lines = []
        for name in sorted(policies.named - served.keys()):
            source = "FUSED_MLP_POLICY" if name in self._settings.policy else "the policy file"
            close = get_close_matches(name, served, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            lines.append(f"{source} names {name[:100]!r}, which is not served here{hint}")
        return lines

    def log_unserved(self, policies: Policies) -> None:
        for line in self.unserved(policies)[:MAX_NAMED]:
            log.warning("%s", line)


def unknown_names(model: ServedModel) -> list[Unknown]:
    policy = model.policy
    if not policy.names_something:
        return []  # most of thousands of models, at each scrape
    unknown = [Unknown("version", text)] if (text := _default_problem(model)) else []
    served = {v.version for v in model.versions}
    selected = {int(part) for part in policy.versions.split(",") if part.isdigit()}
    unknown += [Unknown("versions", f"there is no version {number}") for number in sorted(selected - served)]
    unknown += [
        Unknown("labels", f"{label}: there is no version {number}")
        for label, number in policy.labels.items()
        if number not in served
    ]
    for field, arm in policy.named_arms:
        version = model.find_arm(arm)
        if version is not None and version.state == "LOADING":
            continue
        problem = model.arm_problem(arm) or (model.shadow_problem(arm) if field == "shadow_arm" else "")
        if problem:
            unknown.append(Unknown(field, f"{arm}: {problem}"))
    return unknown


def _default_problem(model: ServedModel) -> str:
    name = model.policy.version
    wanted, default = model.named(name), model.default
    if name == LATEST or (wanted is not None and (wanted.answers or wanted.state == "LOADING")):
        return ""
    why = "is not there" if wanted is None else f"cannot answer ({wanted.reason})"
    return f"version {name} {why}: " + (
        f"version {default.version} answers" if default else "nothing answers"
    )


def check_arms(model: ServedModel, fields: Collection[str]) -> None:
    """Raises InvalidInput if one of these fields names a version or an arm that cannot answer."""
    policy = model.policy
    if "version" in fields and model.named(policy.version) is None and model.answering:
        raise InvalidInput(f"version: {model.name} has no version {policy.version!r}")
    if "versions" in fields and model.answering and not policy.selected([v.version for v in model.versions]):
        raise InvalidInput(f"versions: {model.name} has none of {policy.versions}")
    for field, arm in policy.named_arms:
        if field not in fields:
            continue
        if field == "shadow_arm":
            if problem := model.arm_problem(arm) or model.shadow_problem(arm):
                raise InvalidInput(f"shadow_arm: {arm} of {model.name}: {problem}")
        elif problem := model.arm_problem(arm):
            raise InvalidInput(f"{field}: {arm} of {model.name} cannot answer: {problem}")
        if field == "canary" and (problem := model.canary_problem(arm)):
            raise InvalidInput(f"canary: {problem}")


def check_labels(before: ServedModel, after: ServedModel) -> None:
    """Raises InvalidInput if a label that the policy uses goes, or its version does: its traffic would move."""
    policy = after.policy
    used = {"version": policy.version}
    for field, arm in policy.named_arms:
        used[f"arm {arm}" if field == "arms" else field] = arm.version
    for where, name in used.items():
        if name and before.named(name) is not None and after.named(name) is None:
            raise InvalidInput(f"labels: {name!r} is used by {after.name} ({where}): change that first")
