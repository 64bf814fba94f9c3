"""A version with weights in fewer bits, from import to answers: what it costs is known everywhere, and callers get what
the kernel computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fused_mlp import kernels, models
from fused_mlp.models.importers.importer import import_model
from fused_mlp.service.client import Client
from fused_mlp.service.settings.settings import DEMO_REPOSITORY
from tests.support.server import Server

X = np.random.default_rng(1).uniform(0, 16, (37, 64)).astype(np.float32)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The demo model in float32 as version 1, in int8 as version 2."""
    source = DEMO_REPOSITORY / "digits" / "1"
    import_model(source, tmp_path, "digits")
    import_model(source, tmp_path, "digits", precision="int8", calibration=X)
    return tmp_path


def test_an_int8_version_is_served_beside_a_float32_one(repository: Path) -> None:
    mlp = models.load(repository / "digits" / "2")
    expected = kernels.compile(mlp, device="cpu")(X)
    with (
        Server(model_repository=repository, allow_override=True, shadow=1) as server,
        Client(server.target) as client,
    ):
        first, second = client.model("digits").versions
        assert (first.precision, first.precision_error) == ("float32", None)
        assert second.precision == "int8"
        assert mlp.error is not None
        assert second.precision_error is not None
        assert second.precision_error.largest == pytest.approx(mlp.error.largest)
        assert (second.precision_error.rows, second.precision_error.calibrated) == (37, True)
        assert {kernel.dtype for kernel in second.kernels} == {"int8", "float32"}
        np.testing.assert_array_equal(client.predict("digits", X, version=2).output, expected)
        # The same weights in eager float32: off by the rounding of the rows alone.
        eager = client.predict("digits", X, version=2, variant="unfused").output
        exact = client.predict("digits", X, version=1, variant="unfused").output
        assert 0 < np.abs(eager - expected).max() < 0.05
        assert np.abs(expected - exact).max() < 0.05
        assert server.metric("fused_mlp_shadow_mismatches_total") == 0


def test_the_setting_keeps_float32_versions_in_int8(repository: Path) -> None:
    with Server(model_repository=repository, precision="int8") as server, Client(server.target) as client:
        first, second = client.model("digits").versions
        assert (first.precision, second.precision) == ("int8", "int8")
        assert first.precision_error is not None
        assert not first.precision_error.calibrated
        answers = [client.predict("digits", X, version=version).output for version in (1, 2)]
        np.testing.assert_array_equal(*answers)  # the same weights, rounded in the same way
        assert "digits/1 in int8: error" in server.log()
