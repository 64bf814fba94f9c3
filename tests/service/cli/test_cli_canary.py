# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp canary` and `fused-mlp ab --arms` against a service in this process that has two versions."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fused_mlp.models import save
from fused_mlp.service import app
from fused_mlp.service.cli.commands import canary
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.client.admin import AdminClient, PolicyInfo
from tests.kernels.cuda.random_models import make_mlp, make_spec
from tests.support.puppet import PuppetService
from tests.support.server import free_port

INTERVAL_S = 0.05


@pytest.fixture
def puppet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PuppetService]:
    for version in (1, 2):
        save(make_mlp(make_spec((4, 8, 3)), seed=version), tmp_path / "m" / str(version))
    monkeypatch.setattr(app, "CANARIES_EVERY_S", 0.01)
    monkeypatch.setattr(canary, "POLL_S", 0.01)
    with PuppetService(admin_port=free_port(), model_repository=tmp_path) as running:
        yield running


@pytest.fixture
def callers(puppet: PuppetService, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Requests, as long as the test runs. They drive the clock of the canary, 500 for each of its intervals, so that a
    busy machine makes it slower and changes no verdict."""
    stopped = threading.Event()
    calls = itertools.count()
    now = 0.0
    monkeypatch.setattr(puppet.service.canaries, "_clock", lambda: now)

    def call() -> None:
        nonlocal now
        with Client(puppet.target) as client:
            while not stopped.is_set():
                with suppress(PredictError):  # of a canary that fails
                    client.predict("m", np.ones(4, np.float32))
                now = INTERVAL_S * next(calls) / 500

    thread = threading.Thread(target=call)
    thread.start()
    yield
    stopped.set()
    thread.join()


def run(cli, puppet: PuppetService, *options: object):
    plan = (
        "--steps",
        "50,100",
        "--interval",
        f"{INTERVAL_S}s",
        "--min-requests",
        20,
        "--max-p99-ratio",
        1000,
    )
    return cli("canary", "m", "--to", "2", *plan, *options, "--target", puppet.admin_target)


def test_a_good_arm_ends_in_exit_code_0(cli, puppet: PuppetService, callers: None) -> None:
    outcome = run(cli, puppet)
    assert outcome.code == 0, outcome.err
    promoted, pinned = outcome.out.splitlines()[-2:]
    assert promoted.startswith("m to 2: promoted, 1 of the requests, version 2 is the default now")
    assert pinned == "m is pinned to version 2; to follow new versions again: fused-mlp pin m latest"
    assert puppet.service.catalog.policy("m").version == "2"
    again = run(cli, puppet)
    assert (again.code, again.err) == (
        1,
        "error: INVALID_ARGUMENT: canary: version 2 is the default already\n",
    )
    assert puppet.service.catalog.find("m").version == 2


def test_a_bad_arm_ends_in_exit_code_3(cli, puppet: PuppetService, callers: None) -> None:
    puppet.kernel._eager = None  # of version 2, which was built last: every batch fails
    outcome = run(cli, puppet)
    assert outcome.code == 3
    assert "m to 2: rolled back" in outcome.out.splitlines()[-2]
    assert "requests failed" in outcome.out
    assert puppet.metric("fused_mlp_canary_info", model="m", state="rolled_back", reason="errors") == 1
    with Client(puppet.target) as client:
        assert {client.predict("m", np.ones(4, np.float32)).version for _ in range(8)} == {1}


def test_a_canary_outlives_its_command_and_can_be_stopped(cli, puppet: PuppetService) -> None:
    assert run(cli, puppet, "--no-wait").code == 0
    puppet.wait_for(lambda: puppet.service.catalog.policy("m").arms == {"2": 0.5})
    for other in (
        ["canary", "m", "--to", "2"],
        ["policy", "set", "m", "--arm", "2=0.1"],
        ["policy", "set", "m", "--no-arms"],
        ["policy", "set", "--split", "0.1"],
    ):
        refused = cli(*other, "--target", puppet.admin_target)
        says = "a canary to 2 runs: stop it first (fused-mlp canary m --stop)\n"
        assert (refused.code, refused.err) == (1, f"error: INVALID_ARGUMENT: {says}")
    stopped = cli("canary", "m", "--stop", "--target", puppet.admin_target)
    assert stopped.out.startswith("m is pinned to version 1; to follow new versions again: fused-mlp pin m")
    policy = puppet.service.catalog.policy("m")
    assert (policy.canary, policy.arms, policy.version) == (None, {}, "1")


def test_a_stop_without_a_canary_changes_nothing(cli, puppet: PuppetService) -> None:
    assert cli("policy", "set", "m", "--arm", "1=0.1", "--target", puppet.admin_target).code == 0
    before = puppet.service.catalog.policies.now.changes
    refused = cli("canary", "m", "--stop", "--target", puppet.admin_target)
    says = "no canary of 'm' runs: policy unchanged; to end shares set by hand: fused-mlp policy set m --no-arms\n"
    assert (refused.code, refused.out, refused.err) == (1, "", f"error: INVALID_ARGUMENT: {says}")
    with AdminClient(puppet.admin_target) as admin, pytest.raises(PredictError, match="no canary runs"):
        admin.stop_canary("")  # of all models
    assert cli("policy", "unset", "m", "canary", "--target", puppet.admin_target).code == 0
    assert puppet.service.catalog.policies.now.changes == before


@pytest.mark.parametrize(
    "end",
    [lambda admin: admin.roll_back("m"), lambda admin: admin.unset_policy("m")],
    ids=["rollback", "reset"],
)
def test_who_waits_for_a_canary_is_told_that_it_was_stopped(
    cli, puppet: PuppetService, end: Callable[[AdminClient], object]
) -> None:
    catalog = puppet.service.catalog

    def stop() -> None:
        with AdminClient(puppet.admin_target) as admin:
            puppet.wait_for(lambda: catalog.policy("m").arms == {"2": 0.5})
            end(admin)

    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(stop)
        outcome = run(cli, puppet)
        stopped.result()
    assert outcome.code == 3
    last = "m to 2: stopped, 0 of the requests, by a change of policy"
    assert last in outcome.out.splitlines()
    assert puppet.metric("fused_mlp_canary_info", model="m", to="2", state="stopped") == 1
    shown = cli("policy", "get", "m", "--target", puppet.admin_target).out
    assert "canary to 2 stopped by a change of policy" in shown


def test_a_canary_that_is_stopped_before_it_begins_ends_too(
    cli, puppet: PuppetService, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, start = threading.Event(), AdminClient.start_canary
    catalog = puppet.service.catalog
    planned = catalog.models_with_canary

    def start_and_stop(admin: AdminClient, *arguments: object, **plan: object) -> PolicyInfo:
        info = start(admin, *arguments, **plan)  # type: ignore[arg-type]
        admin.roll_back("m")
        started.set()
        return info

    monkeypatch.setattr(AdminClient, "start_canary", start_and_stop)
    monkeypatch.setattr(catalog, "models_with_canary", lambda: started.wait(30) and planned())
    outcome = run(cli, puppet)
    assert (outcome.code, "m to 2: stopped" in outcome.out) == (3, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "give --to ARM, or --stop"),
        (["--to", "2", "--steps", "5,x"], "--steps: expected percentages"),
        (["--to", "2", "--interval", "soon"], "--interval: expected a time such as 30s"),
        (["--to", "2", "--steps", "5,5"], "steps that grow"),
        (["--to", "2/fast"], "expected a version or a label"),
    ],
)
def test_what_cannot_be_is_said(cli, puppet: PuppetService, options: list[str], words: str) -> None:
    outcome = cli("canary", "m", *options, "--target", puppet.admin_target)
    assert outcome.code != 0
    assert words in " ".join(outcome.err.replace("│", " ").split())


def test_two_versions_are_compared(cli, puppet: PuppetService, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    outcome = cli(
        "ab", "m", "--arms", "previous,2/fused", "--duration", 2, "--rate", 100, "--json", "--html", page,
        target=puppet.target,
    )  # fmt: skip
    assert outcome.code in (0, 4), outcome.err  # on a machine that is busy with other tests, 4
    report = json.loads(outcome.out)
    assert report["arms"] == ["1/fused", "2/fused"]
    assert all(report["rows"][0][arm] > 0 for arm in report["arms"])
    difference = report["difference"]
    assert 0 < difference["quantiles"]["p50"] <= difference["quantiles"]["p99"] <= difference["relative"]
    assert 0 < difference["top1_changed"] < difference["rows"] == 64
    assert "<title>1/fused against 2/fused: m on" in page.read_text()
    for arms, words in (
        ("1", "expected two"),
        ("1,7", "is not served"),
        ("2,2/fused", "both arms are 2/fused"),
    ):
        failed = cli("ab", "m", "--arms", arms, "--duration", 2, target=puppet.target)
        assert words in " ".join(failed.err.replace("│", " ").split())


def test_predict_names_an_arm(cli, puppet: PuppetService, tmp_path: Path) -> None:
    rows = tmp_path / "rows.npy"
    np.save(rows, np.ones((5, 4), np.float32))

    def predict(*options: str):
        return cli("predict", "m", "-i", rows, "--json", "--request-rows", 2, *options, target=puppet.target)

    for arm, version in (("previous", 1), ("2/fused", 2), ("1", 1)):
        assert json.loads(predict("--arm", arm).out)["version"] == version
    assert "has no version 'stable'" in predict("--arm", "stable").err
    for wrong in (["--arm", "2/fast"], ["--arm", "2", "--version", "1"]):
        assert predict(*wrong).code == 2
