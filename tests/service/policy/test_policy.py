# SPDX-License-Identifier: Apache-2.0
"""Policies from settings, and what becomes of a fused kernel that does not pass its check at load."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from fused_mlp import kernels
from fused_mlp.kernels import Backend, Kernel, KernelInfo, registry
from fused_mlp.models import Mlp
from fused_mlp.service.app import Service
from fused_mlp.service.observe.scrape.model_metrics import ModelMetrics
from fused_mlp.service.settings.environment import load_settings
from fused_mlp.service.settings.settings import SettingsError
from tests.support.server import sum_metric


def load(**settings: object) -> Service:
    """A service with its models loaded, without ports."""
    service = Service(load_settings(**settings))
    service.catalog.scan()
    service.catalog.load_all()
    return service


def test_one_policy_may_be_meant_for_all_models(caplog: pytest.LogCaptureFixture) -> None:
    """Below what is said of a model by its name, above the settings of single fields."""
    policy = '{"digits": {"split": 0.25}, "*": {"split": 0.5, "on_mismatch": "unfused"}}'
    service = load(policy=policy, split=0.75)
    service.close()
    (digits,) = service.catalog.models()
    assert (digits.policy.split, digits.policy.on_mismatch) == (0.25, "unfused")
    assert service.catalog.default_policy.split == 0.5
    assert "FUSED_MLP_POLICY names" not in caplog.text


def test_the_weight_of_a_model_is_that_of_its_lanes() -> None:
    service = load(policy='{"digits": {"weight": 2.5, "allow_override": true}}')
    (digits,) = service.catalog.models()
    lanes = digits.versions[0].lanes
    assert {variant: lane.weight for variant, lane in lanes.items()} == {"fused": 2.5, "unfused": 2.5}
    service.catalog.set_policy({"weight": 4}, "digits")
    service.close()
    assert [lane.weight for lane in lanes.values()] == [4, 4]


def test_a_model_may_have_a_policy_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_SPLIT", "0.5")
    monkeypatch.setenv("FUSED_MLP_POLICY", '{"digits": {"variant": "unfused", "shadow": 0.01}}')
    settings = load_settings()
    digits, other = settings.policies.of("digits"), settings.policies.of("other")
    assert (digits.variant, digits.split, digits.shadow) == ("unfused", 0.5, 0.01)
    assert (other.variant, other.split, other.shadow) == ("fused", 0.5, 0.0)
    assert not other.allow_override


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("SPLIT", "1.1", "FUSED_MLP_SPLIT='1.1': input should be less than or equal to 1"),
        ("SHADOW", "nan", "FUSED_MLP_SHADOW='nan'"),
        (
            "POLICY",
            '{"digits": {"splt": 1}}',
            "FUSED_MLP_POLICY.digits.splt=1: unknown; expected one of version, variant, split, arms, labels,",
        ),
        ("POLICY", '{"digits": {"split": 2}}', "FUSED_MLP_POLICY.digits.split=2: input should be less than"),
        ("POLICY", '{"digits": ', "invalid JSON at character 12"),
        (
            "POLICY",
            '{"digits": {"arms": {"1": 0.5}}, "*": {"split": 0.5}}',
            "FUSED_MLP_POLICY.digits: expected split or arms, not both",
        ),
        ("POLICY", "[]", "FUSED_MLP_POLICY=[]: input should be a valid dictionary"),
    ],
)
def test_a_setting_that_cannot_be_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, text: str
) -> None:
    monkeypatch.setenv(f"FUSED_MLP_{name}", value)
    with pytest.raises(SettingsError) as failure:
        load_settings()
    assert text in str(failure.value)
    assert "\n" not in str(failure.value)


def test_a_policy_for_a_model_that_is_not_there_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    load(policy='{"digts": {"split": 0.1}}').close()
    assert "FUSED_MLP_POLICY names 'digts', which is not served here; did you mean 'digits'?" in caplog.text


class WrongKernel(Kernel):
    def __init__(self, mlp: Mlp) -> None:
        super().__init__(mlp.spec, KernelInfo("fused", "wrong", "cpu", "wrong", "none", "float32", 1))

    def run(self, x: np.ndarray, y: np.ndarray) -> str:
        y[:] = 0
        return "wrong"


@pytest.mark.parametrize(
    ("unavailable", "reason"), [(None, "load_check"), ("no such instruction", "unavailable")]
)
def test_a_fused_kernel_that_cannot_serve_is_a_fallback_from_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, unavailable: str | None, reason: str
) -> None:
    wrong = Backend("wrong", "fused", "cpu", 9, lambda _: unavailable, lambda mlp, _: WrongKernel(mlp))
    monkeypatch.setattr(registry, "_BACKENDS", [wrong, *kernels.backends("unfused")])
    caplog.set_level(logging.ERROR)
    service = load(shadow=1)
    try:
        served = service.catalog.find("digits")
        assert served.variant == "unfused"
        assert served.fallback is not None
        assert served.fallback.reason == reason
        assert "serving UNFUSED" in caplog.text
        metrics = ModelMetrics(service.engine, service.catalog, service.meter, 8192, "none")
        text = b"".join(metrics.text()).decode()
        name = "fused_mlp_variant_fallback"
        assert sum_metric(text, name, {"model": "digits", "version": "1", "reason": reason}) == 1
        assert sum_metric(text, name, {}) == 1
        # The policy asks for unfused: serving it is no fallback then.
        service.catalog.set_policy({"variant": "unfused"})
        text = b"".join(metrics.text()).decode()
        assert sum_metric(text, name, {}) == 0
    finally:
        service.close()
