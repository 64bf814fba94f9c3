# SPDX-License-Identifier: Apache-2.0
"""Every administrative action is on record, in the log and in a file: who, what, and the result."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from fused_mlp.protos import admin_pb2
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client import PredictError
from fused_mlp.service.client.admin import AdminClient
from tests.support.fronts import both_fronts
from tests.support.server import Server, demo_copy, free_port, run_to_exit
from tests.support.waiting import wait_until

TOKEN = "the-token-of-the-deployer"
BEARER = {"authorization": f"Bearer {TOKEN}"}
DIGEST = hashlib.sha256(TOKEN.encode()).hexdigest()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def actions(path: Path) -> list[dict[str, Any]]:
    """Without those of the server itself, and what differs between runs."""
    found = [line for line in lines(path) if line["who"] != "server"]
    for line in found:
        assert datetime.fromisoformat(line.pop("time")).utcoffset() is not None
        assert re.fullmatch(r"(127\.0\.0\.1|\[::1\]):\d+", line.pop("address"))
        assert re.fullmatch("[0-9a-f]{16}", line.pop("request_id"))
    return found


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = demo_copy(tmp_path / "models")
    shutil.copytree(root / "digits" / "1", root / "digits" / "2")
    return root


def start(front: str, repository: Path, file: Path, **settings: object) -> Server:
    return Server(
        front=front, model_repository=repository, admin_port=free_port(), audit_log=file, **settings
    )


def admin_target(server: Server) -> str:
    match = re.search(r"admin +(\S+)", server.banner)
    assert match, server.banner
    return match[1]


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(PredictError) as error:
        call()
    return error.value.code.name


def test_each_action_is_one_line_with_caller_and_result(front: str, repository: Path, tmp_path: Path) -> None:
    callers, file = tmp_path / "callers", tmp_path / "audit.jsonl"
    callers.write_text(f"sha256:{DIGEST}\n")
    named = json.dumps({"admin": str(callers)})
    with start(front, repository, file, callers=named) as server:
        with AdminClient(admin_target(server), metadata=BEARER) as admin:
            admin.policies()  # changes nothing: not on record
            admin.set_policy("digits", split=0.25)
            admin.unset_policy("digits", ["split"])
            admin.pin("digits", 1)
            assert refused(lambda: admin.pin("digits", 7)) == "NOT_FOUND"
            admin.pin("digits", 0)
            admin.roll_back("digits")
            admin.unload("digits")
            admin.load("digits")
            assert refused(lambda: admin.load("nothing")) == "INVALID_ARGUMENT"
        with AdminClient(admin_target(server)) as stranger:
            assert refused(lambda: stranger.unload("digits")) == "UNAUTHENTICATED"
            assert refused(stranger.policies) == "UNAUTHENTICATED"
            assert refused(lambda: stranger.trace(0.01)) == "UNAUTHENTICATED"
        written = [line for line in server.log().splitlines() if "audit: who=" in line]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    who = f"token sha256:{DIGEST[:8]}"
    found = actions(file)
    assert {line.pop("who") for line in found[:9]} == {who}
    assert [
        (line["action"], line["model"], line.get("version"), line.get("arguments"), line["result"])
        for line in found[:9]
    ] == [
        ("set_policy", "digits", None, "change { split: 0.25 }", "OK"),
        ("unset_policy", "digits", None, 'unset: "split"', "OK"),
        ("pin", "digits", 1, None, "OK"),
        ("pin", "digits", 7, None, "NOT_FOUND"),
        ("pin", "digits", 2, None, "OK"),
        ("roll_back", "digits", 1, None, "OK"),
        ("unload", "digits", None, None, "OK"),
        ("load", "digits", None, None, "OK"),
        ("load", "nothing", None, None, "INVALID_ARGUMENT"),
    ]
    assert found[8]["error"] == "model 'nothing' is not in the repository"
    assert [(line["who"], line["action"], line["result"]) for line in found[9:]] == [
        ("anonymous", "unload", "UNAUTHENTICATED"),
        ("anonymous", "GetPolicy", "UNAUTHENTICATED"),
        ("anonymous", "Trace", "UNAUTHENTICATED"),
    ]
    assert len(written) >= len(found)
    assert TOKEN not in file.read_text()
    assert DIGEST not in file.read_text()


@both_fronts
def test_loads_over_the_inference_protocol_are_on_record_also_when_they_are_off(
    front: str, repository: Path, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    for allowed, result in ((1, "OK"), (0, "PERMISSION_DENIED")):
        with (
            start(front, repository, file, allow_load=allowed) as server,
            grpc.insecure_channel(server.target) as channel,
        ):
            for name, request in (
                ("Unload", oip.RepositoryModelUnloadRequest(model_name="digits")),
                ("Load", oip.RepositoryModelLoadRequest(model_name="digits")),
            ):
                method = f"/inference.GRPCInferenceService/RepositoryModel{name}"
                call = channel.unary_unary(method, type(request).SerializeToString)
                try:
                    call(request, timeout=30)
                except grpc.RpcError as error:
                    assert error.code().name == result
        last = actions(file)[-2:]
        assert [(line["action"], line["model"], line["result"]) for line in last] == [
            ("unload", "digits", result),
            ("load", "digits", result),
        ]


def test_hostile_and_long_arguments_are_escaped_and_cut(front: str, repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    with start(front, repository, file) as server, AdminClient(admin_target(server)) as admin:
        hostile = 'x\n{"who": "server", "action": "forged"}\u2028\x1b[2J'
        assert refused(lambda: admin.load(hostile)) == "INVALID_ARGUMENT"
        assert refused(lambda: admin.unload("y" * 50_000)) == "NOT_FOUND"
        server_log = server.log()
    assert [line["model"] for line in actions(file)] == [hostile, "y" * 128 + "..."]
    assert max(map(len, file.read_text().splitlines())) < 2000
    for text in (file.read_text(), server_log):
        assert "\x1b" not in text
        assert "\u2028" not in text
        assert not [line for line in text.splitlines() if line.startswith("{") and '"forged"}' in line]


def test_a_flood_of_refusals_leaves_a_few_lines_and_a_count(
    front: str, repository: Path, tmp_path: Path
) -> None:
    callers, file = tmp_path / "callers", tmp_path / "audit.jsonl"
    callers.write_text(f"sha256:{DIGEST}\n")
    with start(front, repository, file, callers=json.dumps({"admin": str(callers)})) as server:
        began = time.monotonic()
        with AdminClient(admin_target(server)) as stranger:
            for _ in range(200):
                assert refused(lambda: stranger.unload("digits")) == "UNAUTHENTICATED"
            allowed = 21 + int(time.monotonic() - began)
            assert 20 <= len(actions(file)) <= allowed
            wait_until(lambda: refused(stranger.policies) and "not on record" in file.read_text())
        with AdminClient(admin_target(server), metadata=BEARER) as admin:
            admin.unload("digits")  # what callers that are listed do is always on record
        assert (actions(file)[-1]["action"], actions(file)[-1]["result"]) == ("unload", "OK")


def test_a_flood_of_wrong_keys_leaves_a_few_lines(front: str, repository: Path, tmp_path: Path) -> None:
    """Also once its address has to wait."""
    callers, file = tmp_path / "callers", tmp_path / "audit.jsonl"
    callers.write_text(f"sha256:{DIGEST}\n")
    with start(front, repository, file, callers=json.dumps({"admin": str(callers)})) as server:
        began, codes = time.monotonic(), set()
        with grpc.insecure_channel(admin_target(server)) as channel:
            unload = Stub(channel, admin_pb2, "Admin").UnloadModel
            for _ in range(200):
                with pytest.raises(grpc.RpcError) as error:
                    unload(admin_pb2.UnloadModelRequest(), metadata=[("x-api-key", "guess")], timeout=20)
                codes.add(error.value.code().name)
        assert codes == {"UNAUTHENTICATED", "RESOURCE_EXHAUSTED"}
        assert 20 <= len(actions(file)) <= 21 + int(time.monotonic() - began)


def test_canaries_from_start_to_verdict_are_on_record(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    with start("native", repository, file) as server, AdminClient(admin_target(server)) as admin:
        admin.pin("digits", 1)
        admin.start_canary("digits", to="2", steps=[50, 100], interval_s=3600)
        wait_until(lambda: "canary_running" in file.read_text())
        shutil.rmtree(repository / "digits" / "2")
        admin.load("digits")  # retires the version that the canary brings in
        wait_until(lambda: "canary_rolled_back" in file.read_text())
    found = [line for line in lines(file) if "canary" in line["action"]]
    assert [(line["who"], line["action"], line["model"]) for line in found] == [
        ("anonymous", "start_canary", "digits"),
        ("server", "canary_running", "digits"),
        ("server", "canary_rolled_back", "digits"),
    ]
    assert found[0]["arguments"].startswith('change { canary { to: "2" steps: 50')


def test_versions_that_the_server_loads_by_itself_are_on_record(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    with start("native", repository, file, reload="poll:0.1", reload_settle_s=0.1):
        shutil.copytree(repository / "digits" / "1", repository / "digits" / "3")
        wait_until(lambda: '"version": 3' in file.read_text())
        shutil.rmtree(repository / "digits" / "2")
        wait_until(lambda: '"retire"' in file.read_text())
    own = [(line["who"], line["action"], line.get("version")) for line in lines(file)]
    assert own == [
        ("server", "start", None),
        ("server", "load", 3),
        ("server", "retire", 2),
        ("server", "stop", None),
    ]


def test_the_file_outlives_restarts_and_being_moved_away(repository: Path, tmp_path: Path) -> None:
    file, moved = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    for _ in range(2):
        with start("native", repository, file) as server, AdminClient(admin_target(server)) as admin:
            admin.unload("digits")
    assert [line["action"] for line in lines(file)] == ["start", "unload", "stop"] * 2
    with start("native", repository, file) as server, AdminClient(admin_target(server)) as admin:
        file.rename(moved)
        admin.unload("digits")
        assert [line["action"] for line in lines(file)] == ["unload"]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert server.metric("fused_mlp_audit_lines_total", result="ok") == 2


def test_actions_go_on_when_the_disk_is_full(front: str, repository: Path) -> None:
    with start(front, repository, Path("/dev/full")) as server:
        with AdminClient(admin_target(server)) as admin:
            admin.pin("digits", 1)
            assert admin.policies("digits")[0].version == "1"
        assert server.metric("fused_mlp_audit_lines_total", result="failed") == 2
        log = server.log()
        assert log.count("an audit line was not written: No space left on device") == 1
        assert "action=pin model=digits version=1 result=OK" in log


def test_a_file_that_cannot_be_written_is_found_at_the_start(tmp_path: Path) -> None:
    ended = run_to_exit(audit_log=tmp_path / "missing" / "audit.jsonl")
    assert ended.returncode == 1
    assert "FUSED_MLP_AUDIT_LOG=" in ended.stderr
    assert "cannot be written: No such file or directory" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_json_logs_have_the_fields_of_the_line(repository: Path, tmp_path: Path) -> None:
    # The banner is a log line here: the ports are named, and the process is asked directly.
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "fused_mlp.service.cli", "serve", "--log-format", "json", "--grpc-port", "0",
         "--rest-port", "off", "--metrics-port", "0", "--admin-port", str(port), "--log-level", "error",
         "--model-repository", str(repository)],
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        started = json.loads(process.stderr.readline())  # the level does not silence the audit
        assert (started["logger"], started["audit"]["action"]) == ("fused_mlp.audit", "start")
        with AdminClient(f"127.0.0.1:{port}") as admin:
            admin.unload("digits")
        line = json.loads(process.stderr.readline())
        assert (line["audit"]["who"], line["audit"]["action"]) == ("anonymous", "unload")
    finally:
        process.terminate()
        process.communicate(timeout=30)
