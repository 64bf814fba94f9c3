# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp ab` against real servers."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import grpc
import pytest

from fused_mlp.service.client import Client, ModelInfo
from tests.support.documents import KEYS
from tests.support.scripted_server import Failure

ROWS = ["latency p50", "latency p90", "latency p99", "kernel p50", "answered", "server CPU per request"]


def test_report_has_every_figure_for_both_variants(cli, server, tmp_path):
    page = tmp_path / "report.html"
    outcome = cli(
        "ab", "--duration", 2, "--rate", 200, "--rows", 3, "--metrics", server.metrics_url, "--json",
        "--html", page, target=server.target,
    )  # fmt: skip
    assert outcome.code in (0, 4), outcome.err  # on a machine that is busy with other tests, 4
    report = json.loads(outcome.out)
    assert report.keys() == KEYS["ab"]
    rows = {row["name"]: row for row in report["rows"]}
    assert list(rows) == ROWS
    for name, row in rows.items():
        for variant in ("fused", "unfused"):
            # The clock of a process ticks 10 ms: two seconds may be too few for a figure.
            assert row[variant] > 0 if row[variant] is not None else "CPU" in name, name
        if row["unit"] == "s" and row["ratio"]:
            assert row["ratio"]["low"] <= row["ratio"]["value"] <= row["ratio"]["high"], name
    assert 0 < report["difference"]["absolute"] < 1e-5  # float32 probabilities, summed in another order
    assert report["difference"]["rows"] == 3 * 64
    text = page.read_text()
    assert report["verdict"] in text
    assert text.count("<svg") == 3
    assert not re.search(r"(?:\bsrc=|href=|url\(|@import)", text), (
        "the page asks for something from elsewhere"
    )


def test_starts_a_server_of_its_own_and_prints_a_table(cli):
    outcome = cli("ab", "digits", "--duration", "2s", "--rate", 40)
    assert outcome.code in (0, 4), outcome.err
    for name in ROWS:
        assert name in outcome.out
    assert "unfused / fused" in outcome.out
    assert re.search(r"(Fused is|Unfused is|No difference|Not valid)", outcome.out)


@pytest.mark.parametrize(
    ("duration", "words"),
    [("1s", "at least 2s"), ("soon", "expected a time such as 30s"), ("", "such as 30s")],
)
def test_duration_that_cannot_be_run_is_a_wrong_option(cli, duration, words):
    outcome = cli("ab", "--duration", duration, target="127.0.0.1:1")
    assert outcome.code == 2
    assert words in outcome.err


def test_server_that_refuses_to_be_told_the_variant(cli, scripted):
    refusal = "requests may not choose a variant here"
    scripted.failures.append(Failure(grpc.StatusCode.PERMISSION_DENIED, refusal, ()))
    outcome = cli("ab", "--duration", 2, target=scripted.target)
    assert outcome.code == 1
    assert "FUSED_MLP_ALLOW_OVERRIDE=1" in outcome.err
    assert refusal in outcome.err


def test_server_with_one_variant_is_told_how_to_have_both(cli, scripted, monkeypatch: pytest.MonkeyPatch):
    def with_one_kernel(self: Client) -> list[ModelInfo]:
        model = models(self)[0]
        return [replace(model, versions=tuple(replace(v, kernels=v.kernels[:1]) for v in model.versions))]

    models = Client.models
    monkeypatch.setattr(Client, "models", with_one_kernel)
    outcome = cli("ab", "--duration", 2, target=scripted.target)
    assert outcome.code == 1
    assert "no model is served in both variants" in outcome.err
    assert "--allow-override 1" in outcome.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target", "127.0.0.1:1"], "start a server with"),
        (["--from-prometheus", "http://127.0.0.1:1"], "does not answer as a Prometheus"),
        (["--from-prometheus", "http://127.0.0.1:1", "--since", "soon"], "expected a time such as 30m"),
        (["--model-repository", "/nonexistent"], "the server did not start"),
    ],
)
def test_what_cannot_work_ends_in_one_line(cli, options, words):
    outcome = cli("ab", "--duration", 2, *options)
    assert outcome.code == 1
    assert words in outcome.err
    assert outcome.err.count("\n") == 1


def test_unreachable_metrics_leave_the_cpu_unknown(cli, scripted):
    outcome = cli(
        "ab", "--duration", 2, "--rate", 30, "--metrics", "http://127.0.0.1:1", target=scripted.target
    )
    assert "CPU per request is not known" in " ".join(outcome.out.split())
    assert "n/a" in outcome.out


def test_a_report_that_cannot_be_written_is_told_before_the_load(cli, server, tmp_path):
    outcome = cli("ab", "--html", tmp_path / "missing" / "report.html", target=server.target)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert f"there is no folder {tmp_path / 'missing'}" in outcome.err
