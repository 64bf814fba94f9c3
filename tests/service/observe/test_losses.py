# SPDX-License-Identifier: Apache-2.0
"""The log line that names the lane that loses requests."""

from __future__ import annotations

import logging

import pytest

from fused_mlp.service.errors import Code
from fused_mlp.service.observe.losses import Losses
from tests.support.puppet import PuppetService


def test_lane_that_loses_requests_is_named_once_per_look(caplog: pytest.LogCaptureFixture) -> None:
    with PuppetService() as puppet:
        losses = Losses(puppet.service.catalog)
        lane = puppet.lane()
        for code, count in {Code.OK: 60, Code.DEADLINE_EXCEEDED: 30, Code.CANCELLED: 10}.items():
            for _ in range(count):
                lane.record(code, 1000)
        with caplog.at_level(logging.WARNING):
            losses.look()
            losses.look()  # nothing was lost since
    (line,) = [record.getMessage() for record in caplog.records if record.name.endswith("losses")]
    assert (
        line == "digits/1 fused lost 40 of 100 requests within a minute: 30 DEADLINE_EXCEEDED, 10 CANCELLED"
    )


def test_mistakes_of_callers_and_one_loss_in_a_thousand_are_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with PuppetService() as puppet:
        lane = puppet.lane()
        for code, count in {Code.OK: 999, Code.INVALID_ARGUMENT: 500, Code.CANCELLED: 1}.items():
            for _ in range(count):
                lane.record(code, 1000)
        with caplog.at_level(logging.WARNING):
            Losses(puppet.service.catalog).look()
    assert [record for record in caplog.records if record.name.endswith("losses")] == []
