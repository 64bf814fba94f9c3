# SPDX-License-Identifier: Apache-2.0
"""Canaries: steps by an injected clock, traffic counted on real lanes, no waiting."""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fused_mlp.models import save
from fused_mlp.service import _engine
from fused_mlp.service.app import Service
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel
from fused_mlp.service.errors import Code, InvalidInput
from fused_mlp.service.observe.scrape.model_metrics import ModelMetrics
from fused_mlp.service.policy.canary_plan import CanaryPlan, CanaryStatus
from fused_mlp.service.policy.rollout.canary import Canaries
from fused_mlp.service.policy.rollout.evidence import Traffic, find_fault, interval
from fused_mlp.service.policy.rollout.pins import pin, roll_back
from fused_mlp.service.settings.environment import load_settings
from tests.kernels.cuda.random_models import make_mlp, make_spec
from tests.support.server import sum_metric

MS = 1_000_000
PLAN = {"to": "2", "steps": (5, 50, 100), "interval_s": 60}


@dataclass
class Rig:
    service: Service
    now: float = 1000.0
    canaries: Canaries = field(init=False)

    def __post_init__(self) -> None:
        self.canaries = Canaries(self.service.catalog, lambda: self.now)

    def set(self, **changes: object) -> None:
        self.service.catalog.set_policy(changes, "m")

    def look(self, after: float = 0) -> None:
        self.now += after
        self.canaries.look()

    def traffic(
        self,
        version: int,
        requests: int = 1200,
        failed: int = 0,
        took_ns: int = MS,
        code: Code = Code.INTERNAL,
    ) -> None:
        lane = self.service.catalog.find("m", version).lanes["fused"]
        for i in range(requests):
            lane.record(code if i < failed else Code.OK, took_ns)

    @property
    def status(self) -> CanaryStatus:
        return self.service.catalog.policies.canaries["m"]

    @property
    def arms(self) -> dict[str, float]:
        return self.service.catalog.policy("m").arms

    @property
    def default(self) -> int:
        return self.service.catalog.find("m").version


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for version in (1, 2):
        save(make_mlp(make_spec((4, 8, 3)), seed=version), root / "m" / str(version))
    return root


def path_of(rig: Rig) -> Path:
    file = rig.service.catalog.policies.file
    assert file is not None
    return file.path


def start(repository: Path) -> Rig:
    service = Service(load_settings(model_repository=repository))
    service.catalog.scan()
    service.catalog.load_all()
    return Rig(service)


@pytest.fixture
def rig(repository: Path) -> Iterator[Rig]:
    made = start(repository)
    yield made
    made.service.close()
    (repository / "policy.json").unlink(missing_ok=True)


def test_a_good_arm_becomes_the_default_step_by_step(rig: Rig) -> None:
    rig.set(canary=PLAN)  # `latest` is version 2 already: version 1 keeps the traffic
    rig.look()
    assert (rig.default, rig.arms) == (1, {"2": 0.05})
    rig.look()
    for share in (0.05, 0.5, 0.9):  # the old arm keeps a tenth until the verdict
        assert rig.arms == {"2": share}
        rig.traffic(2)
        rig.traffic(1)
        rig.look(after=59)
        assert rig.arms == {"2": share}
        rig.look(after=1)
        rig.look()  # the next step begins
    assert (rig.default, rig.arms) == (2, {})
    assert (rig.status.state, rig.status.reason) == ("promoted", "")
    assert rig.service.catalog.policy("m").canary is None


def test_a_canary_that_cannot_be_looked_at_holds_up_no_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig.set(canary=PLAN)
    planned = rig.service.catalog.models_with_canary()
    broken = replace(planned[0], name="broken", versions=None)  # type: ignore[arg-type]
    monkeypatch.setattr(rig.service.catalog, "models_with_canary", lambda: [broken, *planned])
    rig.look()
    assert rig.arms == {"2": 0.05}
    assert "canary of broken to 2 could not be checked" in caplog.text


@pytest.mark.parametrize(
    ("worse", "reason", "text"),
    [
        (
            {"failed": 60},
            "errors",
            "60 of 1,200 requests failed or were cancelled, 5.00%, against 0.00% of the old arm",
        ),
        ({"failed": 60, "code": Code.CANCELLED}, "errors", "60 of 1,200 requests failed or were cancelled"),
        ({"took_ns": 4 * MS}, "latency", "100.0% of its requests took longer than"),
    ],
)
def test_a_worse_arm_is_taken_back_at_once(
    rig: Rig, caplog: pytest.LogCaptureFixture, worse: dict[str, Any], reason: str, text: str
) -> None:
    caplog.set_level(logging.INFO)
    rig.set(canary=PLAN)
    rig.look()
    rig.look()
    rig.traffic(1)
    rig.traffic(2, **worse)
    rig.look(after=1)  # not only at the end of the step
    assert (rig.default, rig.arms) == (1, {})
    assert (rig.status.state, rig.status.reason) == ("rolled_back", reason)
    assert text in rig.status.text
    assert (
        f"canary of m to 2: rolled back, at a share of 0.05: {rig.status.text.partition(': ')[2]}"
        in caplog.text
    )
    assert "changed by the canary to 2" in caplog.text
    metrics = b"".join(
        ModelMetrics(rig.service.engine, rig.service.catalog, rig.service.meter, 8192, "none").text()
    ).decode()
    labels = {"model": "m", "to": "2", "state": "rolled_back", "reason": reason}
    assert sum_metric(metrics, "fused_mlp_canary_info", labels) == 1


def test_callers_who_cancel_as_often_at_both_arms_take_none_back(rig: Rig) -> None:
    rig.set(canary=PLAN)
    rig.look()
    rig.look()
    for version in (1, 2):
        rig.traffic(version, failed=200, code=Code.CANCELLED)
    rig.look(after=60)
    assert (rig.status.state, rig.arms) == ("running", {"2": 0.5})


def in_last_step(rig: Rig) -> None:
    rig.set(canary=PLAN | {"steps": (50, 100)})
    rig.look()
    rig.look()
    rig.traffic(1)
    rig.traffic(2)
    rig.look(after=60)
    rig.look()
    assert rig.arms == {"2": 0.9}


def test_in_the_last_step_both_arms_are_compared_at_the_same_time(rig: Rig) -> None:
    in_last_step(rig)
    for version in (1, 2):  # a neighbour starts, and slows both arms down
        rig.traffic(version, took_ns=4 * MS)
    rig.look(after=60)
    assert (rig.default, rig.status.state) == (2, "promoted")


def test_an_arm_that_gets_slow_in_the_last_step_is_taken_back(rig: Rig) -> None:
    in_last_step(rig)
    rig.traffic(1)
    rig.traffic(2, took_ns=4 * MS)
    rig.look(after=1)
    assert (rig.default, rig.arms, rig.status.reason) == (1, {}, "latency")


def test_latency_that_cannot_be_judged_blocks_promotion(rig: Rig) -> None:
    rig.set(canary=PLAN | {"steps": (50, 100), "min_requests": 10})
    rig.look()
    rig.look()
    for version in (1, 2):
        rig.traffic(version, 10)
    rig.look(after=60)
    rig.look()
    rig.traffic(2)
    rig.traffic(1, 20)
    rig.look(after=599)
    assert (rig.default, rig.arms) == (1, {"2": 0.9})
    assert rig.status.text == "waits for requests: the old arm has answered 20, latency needs 98"
    rig.look(after=1)
    assert (rig.default, rig.arms, rig.status.state) == (1, {}, "rolled_back")
    assert rig.status.reason == "requests"
    assert "gave up after 600 s: the old arm has answered 20, latency needs 98" in rig.status.text


def test_a_thread_that_looks_slowly_gives_up_no_canary_for_lack_of_requests(rig: Rig) -> None:
    in_last_step(rig)

    def clock() -> float:  # requests of the whole step come between two lines of look()
        for version in (1, 2):
            rig.traffic(version)
        return rig.now + 600

    rig.canaries._clock = clock
    rig.look()
    assert rig.status.state == "promoted"


@pytest.mark.parametrize(("answers", "is_judged"), [(200, False), (1100, True)])
def test_a_promotion_says_whether_p99_was_judged(rig: Rig, answers: int, is_judged: bool) -> None:
    in_last_step(rig)
    rig.traffic(1, answers)
    rig.traffic(2, answers)
    rig.look(after=60)
    text = "version 2 is the default now"
    if not is_judged:
        text += f"; p99 was not judged: the old arm has answered {answers}, it needs 1,072"
    assert (rig.status.state, rig.status.text) == ("promoted", text)


@pytest.mark.parametrize("base_ns", [40_000, 300_000, 600_000, 3 * MS, 21 * MS, 36 * MS, 700 * MS])
@pytest.mark.parametrize(("times", "is_fault"), [(1.4, False), (1.65, True), (3, True)])
def test_the_ratio_of_latencies_means_what_it_says(
    rig: Rig, base_ns: int, times: float, is_fault: bool
) -> None:
    """Within the two roundings to 1/32."""
    rig.set(canary=PLAN)
    rig.look()
    rig.look()
    rig.traffic(1, took_ns=base_ns)
    rig.traffic(2, took_ns=int(times * base_ns))
    rig.look(after=1)
    assert (rig.status.reason == "latency") is is_fault


def test_a_slower_median_is_a_fault_beneath_the_same_tail(rig: Rig) -> None:
    rig.set(canary=PLAN)
    rig.look()
    rig.look()
    for version, median_ns in ((1, MS), (2, 3 * MS)):
        rig.traffic(version, 1150, took_ns=median_ns)
        rig.traffic(version, 50, took_ns=80 * MS)
    rig.look(after=1)
    assert rig.status.reason == "latency"
    assert "its p50 is more than 1.5 times that of the old arm" in rig.status.text


def test_a_step_waits_for_enough_requests(rig: Rig) -> None:
    rig.set(canary=PLAN)
    rig.look()
    rig.look()
    rig.traffic(2, 99)
    rig.traffic(1)
    rig.look(after=600)
    assert rig.arms == {"2": 0.05}
    assert rig.status.text == "waits for requests: the new arm has 99, needs 100"
    rig.traffic(2, 1)
    rig.look()
    assert rig.arms == {"2": 0.5}


def test_a_canary_goes_on_after_a_restart(repository: Path) -> None:
    rig = start(repository)
    rig.set(canary=PLAN)
    rig.look()
    rig.look()
    rig.traffic(1)
    rig.traffic(2)
    rig.look(after=60)
    rig.service.close()
    assert rig.arms == {"2": 0.5}
    again = start(repository)
    try:
        again.look()
        assert (again.default, again.arms, again.status.state) == (1, {"2": 0.5}, "running")
        again.traffic(1)
        again.traffic(2)
        again.look(after=60)
        assert again.arms == {"2": 0.9}
    finally:
        again.service.close()
        (repository / "policy.json").unlink()


def test_a_label_that_names_the_default_moves_along(rig: Rig) -> None:
    rig.set(version="stable", labels={"stable": 1}, canary=PLAN | {"steps": (50,)})
    rig.look()
    rig.look()
    rig.traffic(1)
    rig.traffic(2)
    rig.look(after=60)
    policy = rig.service.catalog.policy("m")
    assert (policy.version, policy.labels, rig.default) == ("stable", {"stable": 2}, 2)


def test_a_canary_to_what_is_not_there_is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidInput, match="canary: 7 of m cannot answer: there is no such version"):
        rig.set(canary=PLAN | {"to": "7"})
    assert (rig.default, rig.arms) == (2, {})


def test_with_nothing_to_compare_with_no_arm_is_promoted(rig: Rig) -> None:
    rig.set(version="1", canary=PLAN, arms={"2": 1.0})
    rig.look()
    assert (rig.default, rig.arms) == (1, {"2": 0.9})
    rig.look()
    rig.traffic(2, failed=600)
    rig.look(after=60)
    assert rig.status.text == "waits for requests: the old arm has 0, needs 100"
    rig.traffic(1)
    rig.look(after=1)
    assert (rig.default, rig.arms, rig.status.reason) == (1, {}, "errors")


@pytest.mark.parametrize(
    "undo", [lambda catalog: roll_back(catalog, "m"), lambda catalog: pin(catalog, "m", 1)]
)
def test_an_operator_who_goes_back_ends_the_canary(rig: Rig, undo: Callable[[Catalog], object]) -> None:
    rig.set(version="1", canary=PLAN)
    rig.look()
    assert rig.arms == {"2": 0.05}
    undo(rig.service.catalog)
    rig.look()
    assert (rig.default, rig.arms, rig.status.state) == (1, {}, "stopped")


def test_a_canary_that_starts_during_a_look_is_not_told_as_stopped(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = rig.service.catalog
    planned = catalog.models_with_canary

    def start_after() -> list[ServedModel]:
        found = planned()
        rig.set(version="1", canary=PLAN)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(catalog, "models_with_canary", start_after)
        rig.look()
    assert (rig.status.state, rig.status.text) == ("running", "starts")
    rig.look()
    assert rig.arms == {"2": 0.05}


def test_a_canary_that_is_ended_during_a_look_sets_no_share(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig.set(canary=PLAN)
    catalog = rig.service.catalog
    planned = catalog.models_with_canary

    def end_after() -> list[ServedModel]:
        found = planned()
        roll_back(catalog, "m")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(catalog, "models_with_canary", end_after)
        rig.look()
    assert (rig.arms, catalog.policy("m").canary) == ({}, None)
    assert "canary of m to 2: it was stopped by a change of policy" in caplog.text


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Rig]:
    for version in (1, 2):
        save(make_mlp(make_spec((4, 8, 3)), seed=version), tmp_path / "m" / str(version))
    made = start(tmp_path)
    yield made
    made.service.close()


def add_version(rig: Rig, version: int) -> None:
    catalog = rig.service.catalog
    save(make_mlp(make_spec((4, 8, 3)), seed=version), catalog.repository.root / "m" / str(version))
    catalog.refresh("m")


@pytest.mark.parametrize(("to", "started"), [("latest", "2"), ("next", "2"), ("latest/fused", "2/fused")])
def test_a_canary_keeps_to_the_version_that_it_started_with(growing: Rig, to: str, started: str) -> None:
    growing.set(labels={"next": 2}, canary=PLAN | {"to": to})
    growing.look()
    assert (growing.default, growing.arms, growing.status.to) == (1, {started: 0.05}, started)
    add_version(growing, 3)
    growing.set(labels={"next": 3})
    growing.look()
    plan = growing.service.catalog.policy("m").canary
    assert plan is not None
    assert (growing.default, growing.arms, plan.to) == (1, {started: 0.05}, started)
    for _ in PLAN["steps"]:
        growing.traffic(1)
        growing.traffic(2)
        growing.look(after=60)
        growing.look()
    assert (growing.default, growing.status.state) == (2, "promoted")


def test_a_canary_in_a_file_waits_for_its_version_which_does_not_take_over_before(growing: Rig) -> None:
    catalog = growing.service.catalog
    path_of(growing).write_text('{"m": {"canary": {"to": "3", "steps": [5, 100]}}}')
    catalog.policies.read()
    growing.look()
    assert (growing.default, growing.arms, growing.status.text) == (2, {}, "waits for its version")
    add_version(growing, 3)
    assert growing.default == 2
    growing.look()
    assert (growing.default, growing.arms) == (2, {"3": 0.05})
    growing.look()
    growing.traffic(2)
    growing.traffic(3, failed=600)
    growing.look()
    assert (growing.default, growing.arms, growing.status.state) == (2, {}, "rolled_back")


def test_a_canary_goes_back_while_the_policy_file_cannot_be_used(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.set(canary=PLAN)
    rig.look()
    rig.look()
    policies = rig.service.catalog.policies
    path = path_of(rig)
    held = path.read_text()
    path.write_text('{"m": {')
    rig.traffic(1)
    rig.traffic(2, failed=600)
    rig.look()
    assert (rig.default, rig.arms, rig.status.reason) == (1, {}, "errors")
    assert path.read_text() == '{"m": {'
    assert "expected JSON" in policies.not_kept
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"][:1]
    assert line.startswith(
        f"policy of m: a restart would lose what the canary to 2 changed: {path}: expected JSON"
    )
    path.write_text(held)
    assert not policies.read()
    rig.look()
    assert (rig.default, rig.arms) == (1, {})  # what the file says is known to be bad
    rig.set(weight=2)
    assert policies.not_kept == ""
    own = policies.file.read()["m"]
    assert (own["version"], own["arms"], own["canary"], own["weight"]) == ("1", {}, None, 2)


def test_a_file_changed_by_hand_undoes_what_a_canary_could_not_write(rig: Rig) -> None:
    rig.set(canary=PLAN)
    rig.look()
    rig.look()
    path = path_of(rig)
    document = json.loads(path.read_text())
    path.write_text('{"m": {')
    rig.traffic(1)
    rig.traffic(2, failed=600)
    rig.look()
    assert rig.arms == {}
    document["policies"]["m"]["weight"] = 3
    path.write_text(json.dumps(document))
    assert rig.service.catalog.policies.read()
    assert (rig.arms, rig.service.catalog.policy("m").weight) == ({"2": 0.05}, 3)
    assert rig.service.catalog.policies.not_kept == ""


def test_a_canary_of_a_file_that_is_read_only_takes_its_steps_in_memory(
    growing: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a mounted ConfigMap."""
    policies = growing.service.catalog.policies
    path = path_of(growing)
    path.write_text('{"m": {"version": "previous", "canary": {"to": "latest", "steps": [50, 100]}}}')
    path.chmod(0o444)
    before = path.read_text()
    policies.read()
    growing.look()
    growing.look()
    for _ in range(2):
        growing.traffic(1)
        growing.traffic(2)
        growing.look(after=300)
        growing.look()
    assert (growing.default, growing.arms, growing.status.state) == (2, {}, "promoted")
    assert path.read_text() == before
    assert policies.not_kept == f"{path} is read-only"
    levels = [record.levelname for record in caplog.records if "a restart would lose" in record.getMessage()]
    assert levels == ["WARNING", "WARNING", "ERROR"]


def test_without_an_older_version_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    save(make_mlp(make_spec((4, 8, 3)), seed=1), tmp_path / "m" / "1")
    rig = start(tmp_path)
    try:
        rig.set(canary=PLAN | {"to": "1"})
        rig.look()
        assert (rig.default, rig.status.state) == (1, "rolled_back")
        assert "there is no other version to compare with" in rig.status.text
    finally:
        rig.service.close()


@pytest.mark.parametrize("default", [{"version": "2"}, {"version": "stable", "labels": {"stable": 2}}])
def test_a_canary_to_the_version_that_is_pinned_moves_nothing(rig: Rig, default: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="canary: version 2 is the default already"):
        rig.set(**default, canary=PLAN)
    path = path_of(rig)
    path.write_text(json.dumps({"m": {**default, "canary": PLAN}}))  # a file may name anything
    rig.service.catalog.policies.read()
    rig.look()
    assert (rig.default, rig.arms, rig.status.state) == (2, {}, "rolled_back")
    assert "version 2 is the default already" in rig.status.text
    rig.set(canary=PLAN | {"to": "2/unfused"})
    rig.look()
    assert (rig.default, rig.arms) == (2, {"2/unfused": 0.05})


@pytest.mark.parametrize(
    ("uses", "where"),
    [
        ({"version": "stable"}, "version"),
        ({"arms": {"stable/fused": 0.5}}, "arm stable/fused"),
        ({"shadow_arm": "stable"}, "shadow_arm"),
    ],
)
def test_a_label_that_is_used_is_not_taken_away(rig: Rig, uses: dict[str, object], where: str) -> None:
    catalog = rig.service.catalog
    rig.set(labels={"stable": 1, "other": 2}, **uses)
    text = re.escape(f"labels: 'stable' is used by m ({where}): change that first")
    for change in (
        lambda: rig.set(labels={"other": 2}),
        lambda: rig.set(labels={"stable": 9}),
        lambda: catalog.policies.unset(["labels"], "m"),
        lambda: catalog.set_policy({"labels": {}}),
    ):
        with pytest.raises(InvalidInput, match=text):
            change()
    assert catalog.policy("m").labels == {"stable": 1, "other": 2}
    rig.set(labels={"stable": 1})  # what nothing uses
    rig.set(labels={}, version="1", arms={}, shadow_arm="")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"canary": PLAN | {"steps": (5, 5)}}, "steps that grow"),
        ({"canary": PLAN | {"steps": ()}}, "at least 1 item"),
        ({"canary": PLAN | {"to": "2/fast"}}, "a version or a label"),
        ({"canary": PLAN, "split": 0.1}, "a canary alone"),
        ({"canary": PLAN, "arms": {"1": 0.1}}, "a canary alone"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(rig: Rig, changes: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        rig.set(**changes)
    assert rig.service.catalog.policy("m").canary is None


def test_chance_alone_is_no_fault() -> None:
    plan = CanaryPlan(to="2")

    def took(*counts: int) -> tuple[int, ...]:
        """Requests of 1, 2 and 4 ms."""
        buckets = [0] * (len(_engine.LATENCY_BOUNDS_NS) + 1)
        for count, ms in zip(counts, (1, 2, 4), strict=True):
            buckets[bisect_right(_engine.LATENCY_BOUNDS_NS, ms * MS)] = count
        return tuple(buckets)

    old = Traffic(1000, 2, took(900, 90, 10))
    assert find_fault(old, Traffic(100, 3, took(88, 9, 3)), plan) is None
    assert find_fault(old, Traffic(100, 3, took(20, 70, 10)), plan) is not None
    assert find_fault(old, Traffic(0, 0, took(0, 0, 0)), plan) is None
    assert find_fault(Traffic(), old, plan) is None


def test_the_interval_of_a_share_holds_the_true_one() -> None:
    """Against the exact binomial tails, which are 1 in 2000 at the ends of an exact interval."""
    from math import comb

    for count, total in ((0, 50), (1, 80), (3, 100), (20, 1000), (97, 100), (50, 50)):
        low, high = interval(count, total)
        above = sum(comb(total, k) * low**k * (1 - low) ** (total - k) for k in range(count, total + 1))
        below = sum(comb(total, k) * high**k * (1 - high) ** (total - k) for k in range(count + 1))
        for tail in (above if low > 0 else 0.0005, below if high < 1 else 0.0005):
            assert 0.0001 < tail < 0.0007
