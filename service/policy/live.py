# SPDX-License-Identifier: Apache-2.0
"""The policies in force, and the only way to change them. A change by a caller is checked, what it needs is loaded, it
is written to the policy file, and then it takes effect, all or nothing. Runs on threads that may wait for loads."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from fused_mlp.kernels import KernelError
from fused_mlp.models import ModelLoadError
from fused_mlp.service.errors import InvalidInput, Unsupported
from fused_mlp.service.policy.canary_plan import CanaryPlan, CanaryStatus
from fused_mlp.service.policy.file import PolicyFile, PolicyFileError
from fused_mlp.service.policy.policies import FieldsByModel, Policies
from fused_mlp.service.policy.policy import Policy

log = logging.getLogger(__name__)

MAX_HISTORY = 100
MAX_LOGGED = 10  # models with a line of their own
NO_FILE = "the demo that is part of the package keeps no policies; FUSED_MLP_POLICY_FILE names a file"


@dataclass(frozen=True)
class PolicyChanged:
    """One change, and who made it. `model` is empty for all models."""

    at: float  # seconds since 1970
    by: str
    model: str
    what: str


class ServedChange(Protocol):
    """One change of the policies of what is served (catalog/policy_change.py)."""

    def prepare(self, policies: Policies) -> None:
        """Loads and builds what the policies need. Raises InvalidInput, ModelNotFound, KernelError."""

    def publish(self, policies: Policies, commit: Callable[[], None]) -> dict[str, tuple[Policy, Policy]]:
        """Returns the policies before and after by model. Calls `commit` under the lock of the routes."""


class LivePolicies:
    """`file` is None where policies live in memory. `begin` starts a change: of a model or of all (empty name), of some
    fields, and whether the model may be away. `notify` gets the names of the models that changed; `file_read` is
    called after the file was applied."""

    def __init__(
        self,
        policies: Policies,
        file: PolicyFile | None,
        *,
        begin: Callable[[str, Collection[str], bool], AbstractContextManager[ServedChange]],
        notify: Callable[[Collection[str]], None],
        file_read: Callable[[], None],
    ) -> None:
        self.now = policies
        self.file = file
        self._begin = begin
        self._notify = notify
        self._file_read = file_read
        self.history: deque[PolicyChanged] = deque(maxlen=MAX_HISTORY)
        self.canaries: dict[str, CanaryStatus] = {}  # by model: the last one
        self._lock = threading.Lock()  # one change at a time is written and takes effect
        self._held: FieldsByModel = {}  # by the file, when it was read or written last
        self._refused = ""  # why the file could not be used when it was read last
        self._not_written = ""  # why changes by canaries are not in the file

    def start(self) -> None:
        """Before models are served. Raises ModelLoadError if the file cannot be used."""
        try:
            if self.file is not None:
                self.now = self._with_file(self.now)
                self._held = self.now.changes
        except PolicyFileError as error:
            raise ModelLoadError(str(error)) from None

    @property
    def not_kept(self) -> str:
        """Why a restart would lose changes; empty: it keeps them."""
        if self.file is None:
            return NO_FILE if self.now.changes else ""
        return self._not_written if self.now.changes != self._held else ""

    @property
    def problem(self) -> str:
        """Why a restart would lose changes, or the file is refused."""
        return f"the policy file is refused: {self._refused}" if self._refused else self.not_kept

    def of(self, name: str) -> Policy:
        return self.now.of(name)

    def has_canary(self, name: str = "") -> bool:
        """Whether a canary runs for a model, or for any model if the name is empty."""
        now = self.now
        return any(now.of(each).canary for each in ([name] if name else ["", *now.named]))

    def set(
        self, changes: Mapping[str, object], name: str = "", *, by: str = "the program"
    ) -> Collection[str]:
        """Changes fields of one model's policy, or of all policies; returns the names of the models. Loading versions
        and building kernels may take seconds. `by`: who does it, for the history. Raises InvalidInput, ModelNotFound,
        KernelError; Unsupported if the file cannot be read or written. For a model that is named, an arm that it does
        not have, or a precision that costs it too much, is refused; otherwise that model stays as it is."""

        def edit(now: Policies) -> Policies:
            _check_canaries(now, changes, name)
            return now.changed(changes, name)

        with _refusal():
            return self._change(edit, name, changes, _record(by, name, changes))

    def unset(self, fields: Collection[str], name: str = "", *, by: str = "the program") -> Collection[str]:
        """Takes changes of fields back: the settings apply again, or the changes for all models. Also for a model that
        has changes and is not served."""
        if unknown := set(fields) - Policy.model_fields.keys():
            known = ", ".join(Policy.model_fields)
            raise InvalidInput(f"unset: expected some of {known}, got {', '.join(sorted(unknown))[:100]}")
        with _refusal():
            self.read()
            if "canary" in fields and self.has_canary(name):
                fields = {*fields, "arms"}  # its share; without a canary they were set by hand
            record = PolicyChanged(time.time(), by, name, f"as before: {', '.join(sorted(fields))}")
            away = name in self.now.changes
            return self._change(lambda now: now.without(fields, name), name, fields, record, may_be_away=away)

    def set_by_canary(self, changes: Mapping[str, object], name: str, *, by: str) -> None:
        """Takes effect at once, and is written if possible: going back must not wait until the file is fixed. The next
        change that is written includes it; a change of the file by hand undoes it."""

        def edit(now: Policies) -> Policies:
            if now.of(name).canary is None:
                raise InvalidInput("it was stopped by a change of policy")
            return now.changed(changes, name)

        self._change(edit, name, changes, _record(by, name, changes), source="canary")
        try:
            self._change(lambda now: now, name)
        except PolicyFileError as error:
            self._not_written = str(error)
            level = logging.ERROR if changes.get("canary", changes) is None else logging.WARNING
            log.log(level, "policy of %s: a restart would lose what %s changed: %s", name, by, error)

    def read(self) -> bool:
        """Applies the file after a change of it, all or nothing. False: it holds what was read or written last. Raises
        PolicyFileError."""
        if self.file is None:
            return False
        try:
            with self._lock:
                news = self._has_news()
            if news:
                record = PolicyChanged(time.time(), self.file.path.name, "", "the whole file")
                self._change(self._with_file, record=record, source="file")
        except (PolicyFileError, KernelError) as error:
            is_kernel = isinstance(error, KernelError)
            self._refused = f"{self.file.path}: {error}" if is_kernel else str(error)
            raise PolicyFileError(self._refused) from None
        self._refused = ""
        if news:
            self._file_read()
        return news

    def _read_file(self) -> FieldsByModel:
        """Raises PolicyFileError also if the file is gone: a volume that is not mounted must not undo a pin."""
        assert self.file is not None
        content = self.file.read()
        if self._held and not content and not self.file.path.exists():
            raise PolicyFileError(f"{self.file.path} is gone; to give up all changes, write {{}} to it")
        return content

    def _with_file(self, now: Policies) -> Policies:
        assert self.file is not None
        content = self._read_file()
        try:
            return now.with_changes(content)
        except InvalidInput as error:
            raise PolicyFileError(f"{self.file.path}: {error}") from None

    def _has_news(self) -> bool:
        return self.file is not None and self._read_file() != self._held

    def _change(
        self,
        edit: Callable[[Policies], Policies],
        name: str = "",
        fields: Collection[str] = (),
        record: PolicyChanged | None = None,
        *,
        may_be_away: bool = False,
        source: Literal["caller", "file", "canary"] = "caller",
    ) -> Collection[str]:
        """Writes changes by a caller. Prepares without a lock, because that may take seconds, and starts again if the
        policies or the file changed meanwhile."""
        by_caller, canaries = source == "caller", self.canaries.copy()
        with self._begin(name, fields, may_be_away) as change:
            while True:
                if by_caller:
                    self.read()
                seen = self.now
                edited = edit(seen)
                change.prepare(edited)
                with self._lock, self.file.locked() if self.file and by_caller else nullcontext():
                    if self.now is not seen or (by_caller and self._has_news()):
                        continue
                    if self.file and by_caller and edited.changes != self._held:
                        self.file.write(edited.changes)
                    changed = change.publish(edited, partial(setattr, self, "now", edited))
                    if source != "canary":
                        self._held = edited.changes
                    break
        for each, (before, after) in changed.items():
            # The caller that starts a canary waits for its end, and must not see the end of the one before.
            if after.canary and not before.canary and self.canaries.get(each) is canaries.get(each):
                self.canaries[each] = CanaryStatus(after.canary.to, "running", 0.0, "starts")
        if record is not None:
            self._report(record, changed)
        return changed.keys()

    def _report(self, record: PolicyChanged, changed: Mapping[str, tuple[Policy, Policy]]) -> None:
        self.history.append(record)
        log.info("policy of %s changed by %s: %s", record.model or "all models", record.by, record.what)
        differences = [(name, text) for name, pair in changed.items() if (text := _difference(*pair))]
        for name, text in differences[:MAX_LOGGED]:
            log.info("policy of %s: %s", name, text)
        if len(differences) > MAX_LOGGED:
            log.info("and of %d more models", len(differences) - MAX_LOGGED)
        self._notify(changed.keys())


@contextmanager
def _refusal() -> Iterator[None]:
    try:
        yield
    except PolicyFileError as error:
        raise Unsupported(f"policy unchanged: fix the policy file first: {error}") from None


def _check_canaries(now: Policies, changes: Mapping[str, object], name: str) -> None:
    """A canary that runs sets the shares by itself."""
    if not changes.keys() & {"arms", "split", "canary"} or changes.get("canary", now) is None:
        return
    for each in [name] if name else sorted(now.named):
        if plan := now.of(each).canary:
            raise InvalidInput(f"a canary to {plan.to} runs: stop it first (fused-mlp canary {each} --stop)")


def _record(by: str, name: str, changes: Mapping[str, object]) -> PolicyChanged:
    what = ", ".join(f"{field} {_shown(value)}" for field, value in changes.items())
    return PolicyChanged(time.time(), by, name, what)


def _shown(value: object) -> str:
    return str(value.model_dump(exclude_defaults=True)) if isinstance(value, CanaryPlan) else repr(value)


def _difference(before: Policy, after: Policy) -> str:
    fields = ((field, getattr(before, field), getattr(after, field)) for field in Policy.model_fields)
    return ", ".join(f"{field} {_shown(old)} -> {_shown(new)}" for field, old, new in fields if old != new)
