# SPDX-License-Identifier: Apache-2.0
"""From what replicas said to what they are taken for, and where requests may go."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fused_mlp.service.ray.deployment import Deployment, FleetError, read_range, read_settings
from fused_mlp.service.ray.endpoints import Endpoint, write_endpoints
from fused_mlp.service.ray.fleet import (
    LOST_AFTER_S,
    READY_WITHIN_S,
    SILENT_AFTER_S,
    UNREADY_FOR_S,
    Member,
    Report,
    choose_endpoints,
    recall,
)
from fused_mlp.service.ray.plan import State

WANTED = Deployment("fleet", 2, 4)


def member(name: str, heard: float = 0.0, ready: bool = True) -> Member:
    made = Member(name, None, 0.0, 0.0, 1)
    made.hear(
        heard, Report(WANTED, WANTED, 1, "node", f"10.0.0.1:{len(name)}", "http://10.0.0.1:1", 7, ready)
    )
    return made


def test_a_replica_is_what_it_last_said_and_silent_after_a_while() -> None:
    assert Member("a", None, 0.0, 0.0, 1).state(100) is State.STARTING
    one = member("a", ready=False)
    assert one.state(1) is State.STARTING
    one = member("a")
    assert one.state(1) is State.READY
    assert one.state(SILENT_AFTER_S + 1) is State.SILENT
    assert not one.lost(LOST_AFTER_S - 1, True)
    assert not one.lost(LOST_AFTER_S + 1, False)  # none is heard of
    assert "not heard of" in one.lost(LOST_AFTER_S + 1, True)
    assert one.report is not None
    one.hear(2, replace(one.report, ready=False))
    assert one.state(2) is State.UNREADY
    assert not one.lost(2, True)
    one.hear(UNREADY_FOR_S + 3, replace(one.report, ready=False))
    assert "not ready for" in one.lost(UNREADY_FOR_S + 3, True)
    one.hear(3, replace(one.report, leaving=True))
    assert one.state(3) is State.LEAVING
    late = member("late", heard=READY_WITHIN_S + 1, ready=False)
    assert "not ready within" in late.lost(READY_WITHIN_S + 1, True)


def test_requests_go_to_those_that_are_ready() -> None:
    leaving = member("leaving")
    leaving.leaving_since = 0.0
    members = [member("a"), member("bb", ready=False), leaving]
    assert [endpoint.replica for endpoint in choose_endpoints(1, members, [])] == ["a"]


def test_if_all_are_silent_at_once_those_that_were_known_stay() -> None:
    members = [member("a"), member("bb")]
    before = [*choose_endpoints(1, members, []), Endpoint("10.0.0.9:1", "", "gone", "")]
    kept = choose_endpoints(SILENT_AFTER_S + 1, members, before)
    assert [endpoint.replica for endpoint in kept] == ["a", "bb"]
    members[0].heard = SILENT_AFTER_S + 1
    assert [e.replica for e in choose_endpoints(SILENT_AFTER_S + 1, members, before)] == ["a"]


def test_a_controller_that_starts_again_takes_up_the_rollout_of_the_one_before() -> None:
    """... and knows what to go back to, also if some replicas were not told of the newest."""
    rolled_out = WANTED.changed(None, {"variant": "unfused"})
    told, behind, unheard = member("told"), member("behind"), Member("unheard", None, 0.0, 0.0, 1)
    assert recall(WANTED, [unheard]) == (WANTED, WANTED)
    assert told.report is not None
    told.report = replace(told.report, deployment=rolled_out)
    assert recall(WANTED, [behind, told, unheard]) == (rolled_out, WANTED)
    done = member("done")
    done.report = replace(told.report, settled=rolled_out)
    assert recall(WANTED, [told, done, behind]) == (rolled_out, rolled_out)


def test_endpoints_are_written_whole_and_in_every_form(tmp_path: Path) -> None:
    endpoint = Endpoint("[fe80::1]:8001", "http://[fe80::1]:9", "fleet/replica-1-a", "n1")
    write_endpoints(tmp_path / "new", "fleet", [endpoint])
    (resource,) = json.loads((tmp_path / "new" / "endpoints.yaml").read_text())["resources"]
    (each,) = resource["endpoints"][0]["lb_endpoints"]
    assert each["endpoint"]["address"]["socket_address"] == {"address": "fe80::1", "port_value": 8001}
    (scraped,) = json.loads((tmp_path / "new" / "prometheus.json").read_text())
    assert scraped["targets"] == ["[fe80::1]:9"]
    write_endpoints(tmp_path / "new", "fleet", [])
    assert (tmp_path / "new" / "endpoints.txt").read_text() == ""
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "endpoints.yaml",
        "prometheus.json",
        "replicas.json",
        "endpoints.txt",
    }


@pytest.mark.parametrize("text", ["", "0", "8-2", "2-", "-3", "two", "2-8-9", "1-9999", "2..8"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(FleetError, match=r"expected a number or a range such as 2-8, from 1 to 1000, got"):
        read_range(text)


def test_ranges_and_settings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (read_range("2-8"), read_range("3")) == ((2, 8), (3, 3))
    monkeypatch.chdir(tmp_path)
    assert read_settings(["Max-Batch-Rows=64", "FUSED_MLP_VARIANT=unfused"], "models") == {
        "max_batch_rows": "64",
        "variant": "unfused",
        "model_repository": str(tmp_path / "models"),
    }
    assert read_settings([], "s3://bucket/models") == {"model_repository": "s3://bucket/models"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("variant", "expected NAME=VALUE"),
        ("colour=red", "got 'colour=red'"),
        ("grpc_port=1", "replicas choose and report it"),
    ],
)
def test_settings_that_are_none_are_refused(given: str, words: str) -> None:
    with pytest.raises(FleetError, match=words):
        read_settings([given])


def test_a_change_of_settings_is_a_new_generation_and_one_of_the_number_is_not() -> None:
    wider = WANTED.changed("3-9", {})
    assert (wider.fewest, wider.most, wider.revision, wider.generation) == (3, 9, 2, 1)
    unfused = wider.changed(None, {"variant": "unfused"})
    assert (unfused.most, unfused.settings, unfused.generation) == (9, {"variant": "unfused"}, 3)
    assert unfused.changed(None, {"variant": ""}).settings == {}
    assert unfused.changed(None, {}).generation == 4
    with pytest.raises(FleetError, match="FUSED_MLP_VARIANT"):
        WANTED.changed(None, {"variant": "sideways"})
