# SPDX-License-Identifier: Apache-2.0
"""The policies in force: changes of them by callers, canaries and the file that keeps them, and their history. A change
is all or nothing, in one step, after the versions and kernels that it needs were loaded."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from fused_mlp.kernels import KernelError
from fused_mlp.models import ModelLoadError
from fused_mlp.service._engine import quote_name
from fused_mlp.service.catalog.building import check_torch
from fused_mlp.service.catalog.policies import Changes, Policies
from fused_mlp.service.catalog.policy_file import NotKept, PolicyFile
from fused_mlp.service.catalog.records import CanaryStatus, ServedModel
from fused_mlp.service.catalog.successors import Successors
from fused_mlp.service.catalog.table import ModelTable
from fused_mlp.service.catalog.unknown_names import MOST_NAMED, UnknownNames, check_arms, check_labels
from fused_mlp.service.errors import InvalidInput, ModelNotFound, Unsupported
from fused_mlp.service.settings.canary import CanaryPlan
from fused_mlp.service.settings.policy import ALL_MODELS, Policy
from fused_mlp.service.settings.settings import Settings

log = logging.getLogger(__name__)

MOST_REMEMBERED = 100

_Edit = Callable[[Policies], Policies]


@dataclass(frozen=True)
class PolicyChanged:
    """Who changed what and when. `model` is empty for all of them."""

    at: float  # seconds since 1970
    by: str
    model: str
    what: str


class LivePolicies:
    """`successors`: makes an empty one. `changing`: the lock under which kernels are built. `load`: the versions of a
    model that a policy chooses; `retire`: those that its policy does not; both wait for that lock. `later`: for what
    nothing waits for. `canaries`: by model, the last one."""

    def __init__(
        self,
        settings: Settings,
        file: PolicyFile,
        table: ModelTable,
        *,
        successors: Callable[[], Successors],
        changing: threading.Lock,
        load: Callable[[str, Policy], None],
        retire: Callable[[str], None],
        notify: Callable[[Collection[str]], None],
        canaries: dict[str, CanaryStatus],
    ) -> None:
        self._settings = settings
        self.file = file
        self._table = table
        self._successors = successors
        self._changing = changing
        self._load = load
        self._retire = retire
        self._notify = notify
        self._canaries = canaries
        self.later: Callable[[Callable[[str], None], str], object] = lambda call, name: call(name)
        self.now = Policies(settings)
        self.history: deque[PolicyChanged] = deque(maxlen=MOST_REMEMBERED)
        self.not_kept = ""  # why a change that is in force is not in the file
        # What the file held when it was read or written last. While it holds that still it has nothing new, whatever is
        # in force: a change may not be written yet, or could not be.
        self._kept: Changes = {}
        self._writing = threading.Lock()
        # By model and field, under the table's lock: changes on their way to the file, which a look at it meanwhile
        # must not take back; and those that could not be written, for the next write.
        self._under_way: list[tuple[str, str]] = []
        self._unwritten: list[tuple[str, str]] = []
        self._writes = 0  # that have ended, under the table's lock
        self._refused = ""  # why the file cannot be used, when it was read last
        self.unknown = UnknownNames(settings, table)

    def start(self) -> None:
        """Before models are served. Raises ModelLoadError when the file cannot be used."""
        try:
            self._kept = self.file.read()
            self.now = Policies(self._settings, self._kept).checked()
        except InvalidInput as error:
            raise ModelLoadError(f"{self.file.path}: {error}") from None
        except ValueError as error:
            raise ModelLoadError(str(error)) from None

    @property
    def why_not_kept(self) -> str:
        """Changes in force, or those to come."""
        return f"the policy file is refused: {self._refused}" if self._refused else self.not_kept

    def of(self, name: str) -> Policy:
        return self.now.of(name)

    def set(
        self, changes: Mapping[str, object], name: str = "", *, by: str = "the program", unkept: bool = False
    ) -> list[ServedModel]:
        """Change some fields of one model's policy, or of all (and of the default) when none is named. Kernels and
        versions that the new policy needs are built first, which may take seconds. Raises InvalidInput, ModelNotFound,
        KernelError; Unsupported while the file cannot be used, unless it may stay `unkept`. An arm that a model does
        not have, or a precision that costs it too much, is refused if the model is named; otherwise that model stays
        as it is. `by`: who does it, for the history."""
        what = ", ".join(f"{field} {_shown(value)}" for field, value in changes.items())

        def edit(now: Policies) -> Policies:
            if not unkept:
                _check_canaries(now, changes, name)
            return now.changed(changes, name)

        record = PolicyChanged(time.time(), by, name, what)
        return self._edit(edit, name, changes.keys(), record, unkept=unkept)

    def unset(self, fields: Collection[str], name: str = "", *, by: str = "the program") -> list[ServedModel]:
        """Take changes back: the fields are again what the settings say, or the changes for all models. Also of a model
        that is not served, if it has changes."""
        if unknown := set(fields) - Policy.model_fields.keys():
            known = ", ".join(Policy.model_fields)
            raise InvalidInput(f"unset: expected some of {known}, got {', '.join(sorted(unknown))[:100]}")
        if "canary" in fields:
            fields = {*fields, "arms"}  # what it had
        what = f"as before: {', '.join(sorted(fields))}"
        edit: _Edit = lambda now: now.without(fields, name)  # noqa: E731
        record = PolicyChanged(time.time(), by, name, what)
        return self._edit(edit, name, fields, record, may_be_away=True)

    def read(self) -> bool:
        """The file again, after a change of it. All or nothing. False: it holds what was read or written last. Raises
        ValueError in one line."""
        try:
            news = self._read()
        except ValueError as error:
            self._refused = str(error)
            raise
        self._refused = ""
        return news

    def _read(self) -> bool:
        writes, changes = self._writes, self.file.read()
        if changes == self._kept:
            return False
        assert self.file.path is not None
        self._check_there()
        given_up: list[tuple[str, str]] = []

        def edit(now: Policies) -> Policies:
            nonlocal writes, changes, given_up
            if writes != self._writes:  # while versions were loaded: what was read lacks those changes
                writes, changes = self._writes, self.file.read()
                self._check_there()
            given_up = [*self._unwritten]
            return self._merged(changes, now, self._under_way)

        try:
            changed = self._change(edit, "")
        except (InvalidInput, KernelError) as error:
            raise ValueError(f"{self.file.path}: {error}") from None
        with self._writing:
            self._kept = changes
            for mark in given_up:
                if mark in self._unwritten:
                    self._unwritten.remove(mark)
            if not self._unwritten:
                self.not_kept = ""
        self._tell(changed, PolicyChanged(time.time(), self.file.path.name, "", "the whole file"))
        self.unknown.tell_unserved(self.now)
        return True

    def _check_there(self) -> None:
        """A volume that is not mounted, or a file removed by mistake, must not undo a pin."""
        if self.file.path is not None and not self.file.path.exists():
            raise ValueError(f"{self.file.path} is gone; to give up all changes, write {{}} to it")

    def _edit(
        self,
        edit: _Edit,
        name: str,
        fields: Collection[str],
        record: PolicyChanged,
        *,
        unkept: bool = False,
        may_be_away: bool = False,
    ) -> list[ServedModel]:
        held = {} if unkept else self._check_file(edit)
        may_be_away &= name in held or name in self.now.changes
        marks = [(name, field) for field in fields]
        changed = self._change(edit, name, fields, marks, may_be_away=may_be_away)
        self._keep(marks)
        self._tell(changed, record)
        return [after for _, after in changed]

    def _check_file(self, edit: _Edit) -> Changes:
        """What it holds, before anything is changed: a file that someone is writing must not be overwritten."""
        try:
            held = self.file.read()
            edit(Policies(self._settings, held)).checked()
            return held
        except ValueError as error:
            raise Unsupported(f"nothing was changed: first mend {error}") from None

    def _keep(self, marks: list[tuple[str, str]]) -> None:
        with self._writing:
            todo = [*self._unwritten, *marks]
            try:
                before, after = self.file.update(lambda held: self._merged(held, self.now, todo).changes)
                self._unwritten, self.not_kept = [], ""
                if before == self._kept:  # otherwise the next look at the file finds what others changed
                    self._kept = after
            except NotKept as error:
                self._unwritten, self.not_kept = todo, str(error)
                log.warning("the new policy is in force until the server ends, but cannot be kept: %s", error)
        with self._table.lock:
            for mark in marks:
                self._under_way.remove(mark)
            self._writes += 1

    def _merged(self, held: Changes, now: Policies, marks: Collection[tuple[str, str]]) -> Policies:
        """What a file holds, but for the fields `marks`, which are as they are now. Raises InvalidInput."""
        merged = {name: dict(own) for name, own in held.items()}
        for name, field in marks:
            for each in [name] if name else {*merged, *now.changes, ALL_MODELS}:
                mine, own = now.changes.get(each, {}), merged.setdefault(each, {})
                if field in mine:
                    own[field] = mine[field]
                else:
                    own.pop(field, None)
        return Policies(self._settings, {name: own for name, own in merged.items() if own}).checked()

    def _change(
        self,
        edit: _Edit,
        name: str,
        fields: Collection[str] = (),
        marks: Collection[tuple[str, str]] = (),
        *,
        may_be_away: bool = False,
    ) -> list[tuple[ServedModel, ServedModel]]:
        """The models before and after. `fields`: those named. An explicit variant re-enables a withdrawn kernel."""
        built, looked = self._successors(), set[str]()
        try:
            while True:
                with self._table.lock:
                    names = self._names(name, may_be_away)
                    edited = edit(self.now)
                    policies = {each: edited.of(each) for each in names}
                    for policy in (edited.default, *policies.values()):
                        check_torch(policy)
                    to_load = [
                        each
                        for each in names
                        if each not in looked and self._wants_more(each, policies[each])
                    ]
                    for each in () if to_load else names:
                        self._check_names(each, policies[each], fields, strict=bool(name))
                    models = {each: built.applied(self._table.models[each]) for each in names}
                    incomplete = [each for each in names if models[each].lacks(policies[each])]
                    if not to_load and not incomplete:
                        before = [self._table.models[each] for each in names]
                        changed = self._publish(models, policies, edited, again="variant" in fields)
                        self._under_way += marks
                        built.take_over(models.values())
                        break
                # Not under the lock above: requests are routed, and other policies change, while kernels are built.
                for each in to_load:
                    self._load(each, policies[each])
                looked.update(to_load)
                if not to_load:
                    with self._changing:
                        for each in incomplete:
                            built.build(each, policies[each], strict=bool(name))
        except BaseException:
            for each in looked:  # what was loaded for a policy that is refused
                self.later(self._retire, each)
            raise
        finally:
            built.release()
        pairs = list(zip(before, changed, strict=True))
        self._retire_unchosen(pairs)
        return pairs

    def _names(self, name: str, may_be_away: bool) -> list[str]:
        if not name or name in self._table.models:
            return [name] if name else list(self._table.models)
        if may_be_away:
            return []
        raise ModelNotFound(quote_name(name))

    def _check_names(self, name: str, policy: Policy, fields: Collection[str], *, strict: bool) -> None:
        before = self._table.models[name]
        if strict:
            check_arms(before.under(policy), fields)
        if "labels" in fields and policy is not before.policy:
            check_labels(before, before.under(policy))

    def _wants_more(self, name: str, policy: Policy) -> bool:
        """Whether it may need versions that are not served."""
        old = self.of(name)
        if policy.versions != old.versions or not policy.names_something:
            return policy.versions != old.versions
        served = {v.version for v in self._table.models[name].versions}
        return bool(policy.named - old.named - served)

    def _retire_unchosen(self, changed: list[tuple[ServedModel, ServedModel]]) -> None:
        """Versions that only the old policy chose. What is told to retire some is answered when that is done; what only
        stops naming one, as a rollback does, does not wait for loads."""
        for before, after in changed:
            old, new = before.policy, after.policy
            if old.versions != new.versions:
                self._retire(after.name)
            elif new.versions != "all" and old.named - new.named:
                self.later(self._retire, after.name)

    def _publish(
        self, models: dict[str, ServedModel], policies: dict[str, Policy], edited: Policies, *, again: bool
    ) -> list[ServedModel]:
        changed = [models[name].under(policy, again=again) for name, policy in policies.items()]
        for model in changed:
            plan = model.policy.canary
            if plan is not None and self._table.models[model.name].policy.canary is None:
                # Not that of one before: who has started this one waits for its end.
                self._canaries[model.name] = CanaryStatus(plan.to, "running", 0.0, "starts")
        self.now = edited
        self._table.publish({model.name: model for model in changed})
        for shadow in (v.shadow for model in changed for v in model.versions):
            if shadow is not None:
                shadow.arm()
        return changed

    def _tell(self, changed: list[tuple[ServedModel, ServedModel]], record: PolicyChanged) -> None:
        self.history.append(record)
        log.info("policy of %s changed by %s: %s", record.model or "all models", record.by, record.what)
        told = [(after.name, difference(before.policy, after.policy)) for before, after in changed]
        told = [(name, text) for name, text in told if text]
        for name, text in told[:MOST_NAMED]:
            log.info("policy of %s: %s", name, text)
        if len(told) > MOST_NAMED:
            log.info("and of %d more models", len(told) - MOST_NAMED)
        self._notify([after.name for _, after in changed])


def _check_canaries(now: Policies, changes: Mapping[str, object], name: str) -> None:
    """One that runs sets the shares by itself."""
    if not changes.keys() & {"arms", "split", "canary"} or changes.get("canary", now) is None:
        return
    for each in [name] if name else sorted(now.named):
        if plan := now.of(each).canary:
            raise InvalidInput(f"a canary to {plan.to} runs: stop it first (fused-mlp canary {each} --stop)")


def _shown(value: object) -> str:
    return str(value.model_dump(exclude_defaults=True)) if isinstance(value, CanaryPlan) else repr(value)


def difference(before: Policy, after: Policy) -> str:
    fields = ((field, getattr(before, field), getattr(after, field)) for field in Policy.model_fields)
    return ", ".join(f"{field} {_shown(old)} -> {_shown(new)}" for field, old, new in fields if old != new)
