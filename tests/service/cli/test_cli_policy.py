# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp policy` against a service in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fused_mlp.models import save
from tests.support.fleet import make_fleet, tiny_mlp
from tests.support.puppet import PuppetService
from tests.support.server import free_port


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with PuppetService(admin_port=free_port()) as puppet:
        yield puppet.admin_target


@pytest.fixture
def policy(cli, target):
    return lambda *args: cli("policy", *args, "--target", target)


def test_policies_are_shown_and_changed(policy):
    shown = policy("get")
    assert shown.code == 0, shown.err
    assert "(loaded later)" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    changed = policy("set", "digits", "--split", "0.1", "--allow-override", "--on-mismatch", "unfused")
    assert changed.code == 0, changed.err
    assert changed.out.splitlines()[-1].split() == [
        "digits",
        "fused",
        "0.1",
        "allowed",
        "-",
        "unfused",
        "1",
        "float32",
    ]
    (digits,) = json.loads(policy("get", "digits", "--json").out)
    assert (digits["split"], digits["allow_override"], digits["on_mismatch"]) == (0.1, True, "unfused")
    assert policy("set", "digits", "--weight", "2.5").out.splitlines()[-1].split()[-2] == "2.5"
    everywhere = json.loads(policy("set", "--no-allow-override", "--split", "0", "--json").out)
    assert [each["allow_override"] for each in everywhere] == [False, False]


def test_changes_are_taken_back(policy):
    before = policy("reset", "digits", "--json").out
    policy("set", "digits", "--split", "0.1", "--weight", "2", "--shadow-arm", "")
    (digits,) = json.loads(policy("unset", "digits", "split", "shadow-arm", "--json").out)
    assert (digits["split"], digits["weight"]) == (0, 2)
    refused = policy("unset", "digits", "splt")
    assert refused.code == 1
    assert "unset: expected some of version" in refused.err
    assert policy("reset", "digits", "--json").out == before
    policy("set", "--weight", "3")
    assert [each["weight"] for each in json.loads(policy("reset", "*", "--json").out)] == [1, 1]


def test_a_change_that_cannot_be_kept_is_told(policy):
    changed = policy("set", "digits", "--weight", "2")
    assert changed.code == 0
    says = (
        "changes are in force until the server ends, but are not kept: "
        "the demo that is part of the package keeps no policies"
    )
    assert changed.err.startswith(says)
    assert policy("get", "digits").err.startswith(says)
    assert policy("get").err.startswith(says)


@pytest.mark.parametrize("command", [("pin", "m", "1"), ("rollback", "m")])
def test_a_pin_that_a_restart_would_undo_ends_in_exit_code_1(cli, tmp_path, monkeypatch, command):
    for version in (1, 2):
        save(tiny_mlp(version), tmp_path / "m" / str(version))
    with PuppetService(admin_port=free_port(), model_repository=tmp_path) as puppet:
        monkeypatch.setattr(puppet.service.catalog.policies, "file", None)  # as for the demo of the package
        outcome = cli(*command, "--target", puppet.admin_target)
        assert (outcome.code, puppet.service.catalog.find("m").version) == (1, 1)
        assert outcome.err.startswith("changes are in force until the server ends, but are not kept: ")


def test_while_the_file_cannot_be_used_changes_are_refused(cli, tmp_path):
    for version in (1, 2, 3):
        save(tiny_mlp(version), tmp_path / "m" / str(version))
    file = tmp_path / "policy.json"
    with PuppetService(admin_port=free_port(), model_repository=tmp_path) as puppet:

        def run(*args):
            return cli(*args, "--target", puppet.admin_target)

        assert run("policy", "get").err == ""
        file.write_text('{"m": {')
        for command in (
            ("rollback", "m"),
            ("pin", "m", "1"),
            ("policy", "set", "m", "--weight", "2"),
            ("canary", "m", "--to", "2", "--no-wait"),
        ):
            outcome = run(*command)
            assert outcome.code == 1
            assert outcome.err.startswith(
                f"error: FAILED_PRECONDITION: policy unchanged: fix the policy file first: {file}: expected JSON"
            )
            assert outcome.err.count("\n") == 1
            assert puppet.service.catalog.find("m").version == 3
        assert file.read_text() == '{"m": {'
        with pytest.raises(ValueError, match="expected JSON"):
            puppet.service.catalog.policies.read()  # as a look at the file does, every 2 s
        assert f"are not kept: the policy file is refused: {file}: expected JSON" in run("policy", "get").err
        file.write_text("{}")
        puppet.service.catalog.policies.read()
        kept = run("pin", "m", "2")
        assert (kept.code, kept.err, run("policy", "get").err) == (0, "", "")
        assert puppet.service.catalog.find("m").version == 2


def test_names_that_mean_nothing_are_shown(cli, tmp_path):
    make_fleet(tmp_path, 1)
    (tmp_path / "policy.json").write_text('{"m000": {"version": "7"}, "m00": {"weight": 2}}')
    with PuppetService(admin_port=free_port(), model_repository=tmp_path) as puppet:
        shown = cli("policy", "get", "--target", puppet.admin_target)
        assert "m000: version: version 7 is not there: version 1 answers" in shown.out
        assert shown.err == "the policy file names 'm00', which is not served here; did you mean 'm000'?\n"
        taken_back = cli("policy", "reset", "m00", "--target", puppet.admin_target)
        assert taken_back.out == "changes of m00, which is not served here, are taken back\n"
        assert json.loads((tmp_path / "policy.json").read_text())["policies"] == {"m000": {"version": "7"}}
        assert cli("policy", "get", "--target", puppet.admin_target).err == ""
        again = cli("policy", "unset", "m00", "weight", "--target", puppet.admin_target)
        assert (again.code, "model 'm00' is not served here" in again.err) == (1, True)


def test_the_admin_port_says_what_is_served(cli, target):
    listed = cli("models", "--target", target)
    assert listed.code == 0, listed.err
    assert "digits" in listed.out


def test_a_change_for_many_models_is_told_in_a_summary(cli, tmp_path):
    make_fleet(tmp_path, 30)
    with PuppetService(admin_port=free_port(), model_repository=tmp_path) as puppet:

        def policy(*args):
            return cli("policy", *args, "--target", puppet.admin_target)

        assert "m003" in policy("set", "m003", "--weight", "3").out
        changed = policy("set", "--split", "0.1").out.splitlines()
        assert [line.split()[0] for line in changed[-3:]] == ["(loaded", "m003", "and"]
        assert changed[-1] == " and 29 models with the policy of those loaded later; --json has all"
        assert len(json.loads(policy("set", "--split", "0", "--json").out)) == 31


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["set", "digits", "--split", "2"], "split: expected less than or equal to 1, got 2.0"),
        (["set", "digits", "--weight", "0"], "weight: expected greater than or equal to 0.01, got 0.0"),
        (["set", "nope", "--split", "0.1"], "model 'nope' is not served here"),
        (["get", "nope"], "model 'nope' is not served here"),
    ],
)
def test_what_the_server_refuses_is_one_line(policy, args, says):
    outcome = policy(*args)
    assert outcome.code == 1
    assert says in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    "args", [[], ["--variant", "fast"], ["--on-mismatch", "panic"], ["--split", "x"], ["--precision", "int4"]]
)
def test_what_cannot_be_meant_is_a_usage_error(cli, args):
    assert cli("policy", "set", "digits", *args).code == 2


def test_a_server_without_an_admin_port_is_explained(cli):
    outcome = cli("policy", "get", "--target", "127.0.0.1:1")
    assert outcome.code == 1
    assert "FUSED_MLP_ADMIN_PORT" in outcome.err


def test_a_port_that_is_no_admin_port_is_told_as_such(cli, server):
    outcome = cli("policy", "get", "--target", server.target)
    assert outcome.code == 1
    assert f"{server.target} is not an admin port: start the server with FUSED_MLP_ADMIN_PORT" in outcome.err
