# SPDX-License-Identifier: Apache-2.0
"""Canaries: steps by an injected clock, traffic counted on real lanes, no waiting."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fused_mlp.models import save
from fused_mlp.service.app import Service
from fused_mlp.service.canary.evidence import Traffic, find_fault, interval
from fused_mlp.service.canary.runner import Canaries
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.pinning import pin, roll_back
from fused_mlp.service.catalog.records import CanaryStatus, ServedModel
from fused_mlp.service.errors import Code, InvalidInput
from fused_mlp.service.observe.model_metrics import ModelMetrics
from fused_mlp.service.settings.canary import CanaryPlan
from fused_mlp.service.settings.settings import load_settings
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

    def traffic(self, version: int, requests: int = 1200, failed: int = 0, took_ns: int = MS) -> None:
        lane = self.service.catalog.find("m", version).lanes["fused"]
        for i in range(requests):
            lane.record(Code.INTERNAL if i < failed else Code.OK, took_ns)

    @property
    def status(self) -> CanaryStatus:
        return self.service.catalog.canaries["m"]

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
    for share in (0.05, 0.5, 1.0):
        assert rig.arms == {"2": share}
        rig.traffic(2)
        if share < 1:
            rig.traffic(1)
        rig.look(after=59)
        assert rig.arms == {"2": share}
        rig.look(after=1)
        rig.look()  # the next step begins
    assert (rig.default, rig.arms) == (2, {})
    assert (rig.status.state, rig.status.reason) == ("promoted", "")
    assert rig.service.catalog.policy("m").canary is None


@pytest.mark.parametrize(
    ("worse", "reason", "text"),
    [
        ({"failed": 60}, "errors", "60 of 1,200 requests failed, 5.00%, against 0.00% of the old arm"),
        ({"took_ns": 4 * MS}, "latency", "100.0% of its requests took longer than"),
    ],
)
def test_a_worse_arm_is_taken_back_at_once(
    rig: Rig, caplog: pytest.LogCaptureFixture, worse: dict[str, int], reason: str, text: str
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


def test_at_all_requests_the_old_arm_of_the_step_before_is_the_measure(rig: Rig) -> None:
    rig.set(canary=PLAN | {"steps": (50, 100)})
    rig.look()
    rig.look()
    rig.traffic(1)
    rig.traffic(2)
    rig.look(after=60)
    rig.look()
    assert rig.arms == {"2": 1.0}
    rig.traffic(2, took_ns=4 * MS)
    rig.look(after=1)
    assert (rig.default, rig.arms, rig.status.reason) == (1, {}, "latency")


def test_a_step_waits_for_enough_requests(rig: Rig) -> None:
    rig.set(canary=PLAN)
    rig.look()
    rig.look()
    rig.traffic(2, 99)
    rig.traffic(1)
    rig.look(after=600)
    assert rig.arms == {"2": 0.05}
    assert rig.status.text == "waits for requests: 99 of 100 at least"
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
        assert again.arms == {"2": 1.0}
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
    """As after a restart in the last step: what the old arm answered before is not known any more."""
    rig.set(version="1", canary=PLAN, arms={"2": 1.0})
    rig.look()
    rig.traffic(2, failed=1200)
    rig.look(after=60)
    assert (rig.default, rig.arms) == (1, {"2": 0.05})
    assert rig.status.text == "begins anew: there is nothing to compare with"
    rig.look()
    rig.traffic(2, failed=1200)
    rig.look(after=60)
    assert rig.status.text == "waits for requests that the old arm answers"
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
    assert catalog.policies.file.path is not None
    catalog.policies.file.path.write_text('{"m": {"canary": {"to": "3", "steps": [5, 100]}}}')
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


def test_a_canary_goes_back_while_the_policy_file_cannot_be_used(rig: Rig) -> None:
    rig.set(canary=PLAN)
    rig.look()
    rig.look()
    path = rig.service.catalog.policies.file.path
    assert path is not None
    path.write_text('{"m": {')
    rig.traffic(1)
    rig.traffic(2, failed=600)
    rig.look()
    assert (rig.default, rig.arms, rig.status.reason) == (1, {}, "errors")
    assert path.read_text() == '{"m": {'
    assert "expected JSON" in rig.service.catalog.policies.not_kept


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
    path = rig.service.catalog.policies.file.path
    assert path is not None
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
    buckets = (900, 90, 10, *[0] * 40)
    old = Traffic(1000, 2, buckets)
    assert find_fault(old, Traffic(100, 3, (88, 9, 3, *[0] * 40)), plan) is None
    assert find_fault(old, Traffic(0, 0, ()), plan) is None
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
