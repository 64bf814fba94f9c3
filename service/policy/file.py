# SPDX-License-Identifier: Apache-2.0
"""The file that keeps policies which were changed while the server runs. Several servers may share it under a lock.
Does not know which policies are in force."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fused_mlp.service.atomic_file import locked_folder, replace_file
from fused_mlp.service.policy.canary_plan import CanaryPlan
from fused_mlp.service.policy.policies import FieldsByModel
from fused_mlp.service.policy.policy import MAX_VALUE_CHARACTERS, Policy, check_policies, parse_json

log = logging.getLogger(__name__)

FILE_NAME = "policy.json"
FORMAT = 1
CANARY = "canary"  # the field of a policy that has fields of its own
MAX_BYTES = 1 << 20


class PolicyFileError(ValueError):
    """Why the file cannot be read or written, in one line."""


class PolicyFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        # By model: fields that a later release has written, and below CANARY those of a plan. They are ignored, and
        # stay in the file, those of a plan until its canary ends.
        self._unknown: dict[str, dict[str, Any]] = {}

    def read(self) -> FieldsByModel:
        """Empty if there is no such file. Raises PolicyFileError."""
        try:
            policies = self._parse(self._bytes().decode())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise PolicyFileError(f"{self.path}: {_reason(error)}") from None
        return {
            name: {field: getattr(policy, field) for field in policy.model_fields_set}
            for name, policy in policies.items()
            if policy.model_fields_set
        }

    def _parse(self, text: str) -> dict[str, Policy]:
        """A file without a format was written by hand: an unknown field in it is a mistake. Raises ValueError."""
        document = parse_json(text)
        if not (isinstance(document, dict) and isinstance(document.get("format"), int)):
            return check_policies(document)
        writer = str(document.get("written_by", "of another release"))[:MAX_VALUE_CHARACTERS]
        if document["format"] > FORMAT:
            raise ValueError(
                f"format: expected {FORMAT}, got {document['format']}; start fused-mlp {writer}, which wrote it, "
                "or move the file away"
            )
        policies = document.get("policies")
        unknown: dict[str, dict[str, Any]] = {}
        for name, own in policies.items() if isinstance(policies, dict) else ():
            if isinstance(own, dict) and (fields := _take_unknown(own)):
                unknown[name] = fields
        if unknown and unknown != self._unknown:
            ignored = ", ".join(sorted(_names(unknown)))
            message = "%s: fields that this release does not know are ignored: %s; fused-mlp %s, which wrote it, does"
            log.warning(message, self.path, ignored, writer)
        self._unknown = unknown
        return check_policies(policies)

    def _bytes(self) -> bytes:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would wait for a writer
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError("expected a regular file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(data) > MAX_BYTES:
            raise ValueError(f"expected at most {MAX_BYTES:,} bytes, got more")
        return data

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Excludes other servers until a change of the file is written. Raises PolicyFileError."""
        try:
            with locked_folder(self.path):
                yield
        except OSError as error:
            raise PolicyFileError(f"{self.path}: {_reason(error)}") from None

    def write(self, changes: FieldsByModel) -> None:
        """Under the lock. Raises PolicyFileError."""
        policies = {
            name: rest
            for name, own in self._unknown.items()
            if (rest := {field: value for field, value in own.items() if field != CANARY})
        }
        for name, changed in changes.items():
            known = Policy.model_validate(changed).model_dump(mode="json", exclude_unset=True)
            if known.get(CANARY):
                known[CANARY] = {**self._unknown.get(name, {}).get(CANARY, {}), **known[CANARY]}
            policies[name] = {**policies.get(name, {}), **known}
        document = {"format": FORMAT, "written_by": version("fused-mlp"), "policies": policies}
        try:
            mode = stat.S_IMODE(self.path.stat().st_mode) if self.path.exists() else 0o644
            if not mode & 0o222:
                raise PolicyFileError(f"{self.path} is read-only")
            replace_file(self.path, json.dumps(document, indent=2) + "\n", mode)
        except OSError as error:
            raise PolicyFileError(f"{self.path} cannot be written: {_reason(error)}") from None


def _take_unknown(own: dict[str, Any]) -> dict[str, Any]:
    """Takes the fields that this release does not know out of a policy."""
    unknown = {field: own.pop(field) for field in own.keys() - Policy.model_fields.keys()}
    plan = own.get(CANARY)
    if isinstance(plan, dict) and (fields := plan.keys() - CanaryPlan.model_fields.keys()):
        unknown[CANARY] = {field: plan.pop(field) for field in fields}
    return unknown


def _names(unknown: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name, own in unknown.items():
        for field, value in own.items():
            yield from (
                (f"{name}.{CANARY}.{inner}" for inner in value) if field == CANARY else [f"{name}.{field}"]
            )


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"expected UTF-8: {error.reason} at byte {error.start}"
    return str((isinstance(error, OSError) and error.strerror) or error)
