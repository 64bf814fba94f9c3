# SPDX-License-Identifier: Apache-2.0
"""A version with weights in fewer bits, from import to answers: what it costs is known everywhere, and callers get what
the kernel computes."""

from __future__ import annotations

import threading
from pathlib import Path

import grpc
import numpy as np
import pytest

from fused_mlp import kernels, models
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.importers.importer import import_model
from fused_mlp.models.program.spec import INPUT, Linear
from fused_mlp.models.weights.precision import to_precision
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.client.admin import AdminClient
from fused_mlp.service.settings.settings import DEMO_REPOSITORY
from tests.support.server import Server, free_port

X = np.random.default_rng(1).uniform(0, 16, (37, 64)).astype(np.float32)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The demo model in float32 as version 1, in int8 as version 2."""
    source = DEMO_REPOSITORY / "digits" / "1"
    import_model(source, tmp_path, "digits")
    import_model(source, tmp_path, "digits", precision="int8", calibration=X)
    return tmp_path


def save_wild(repository: Path) -> None:
    """A model for which int8 costs more than the bound: the difference of two large, nearly equal products."""
    first = np.array([[1.0, 1.0], [1.0, 1.003]], np.float32)
    steps = (
        Linear(name="both", input=INPUT, out_features=2, bias=False),
        Linear(name="difference", input="both", out_features=1, bias=False),
    )
    tensors = {"both.weight": first, "difference.weight": np.array([[1.0, -1.0]], np.float32)}
    models.save(Mlp(MlpSpec(in_features=2, steps=steps), tensors), repository / "wild" / "1")


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


def test_a_policy_for_all_models_keeps_float32_versions_in_int8(repository: Path) -> None:
    policy = '{"*": {"precision": "int8"}}'
    with Server(model_repository=repository, policy=policy) as server, Client(server.target) as client:
        first, second = client.model("digits").versions
        assert (first.precision, second.precision) == ("int8", "int8")
        assert first.precision_error is not None
        assert not first.precision_error.calibrated
        answers = [client.predict("digits", X, version=version).output for version in (1, 2)]
        np.testing.assert_array_equal(*answers)  # the same weights, rounded in the same way
        assert "digits/1 in int8: error" in server.log()


def test_a_policy_changes_the_precision_of_a_model_under_load(repository: Path) -> None:
    """The kernel in the other precision is built beside the one that serves and takes over at once: no request is lost,
    and each is answered by one of the two. A version saved in int8 stays as it is."""
    saved = models.load(repository / "digits" / "1")
    wide, narrow = (
        kernels.compile(mlp, device="cpu")(X).tobytes() for mlp in (saved, to_precision(saved, "int8"))
    )
    port = free_port()
    with (
        Server(model_repository=repository, admin_port=port, shadow=1) as server,
        Client(server.target) as client,
        AdminClient(f"127.0.0.1:{port}") as admin,
    ):
        before = client.model("digits").versions
        stopped = threading.Event()
        answers: list[set[bytes]] = []

        def call_until_stopped() -> None:
            seen: set[bytes] = set()
            while not stopped.is_set():
                seen.add(client.predict("digits", X, version=1).output.tobytes())
            answers.append(seen)  # an error ends the thread before

        threads = [threading.Thread(target=call_until_stopped) for _ in range(2)]
        for thread in threads:
            thread.start()
        for precision in ("int8", "float32", "bfloat16", "int8"):
            (changed,) = admin.set_policy("digits", precision=precision)
            assert changed.precision == precision
            first, second = client.model("digits").versions
            assert (first.precision, second.precision) == (precision, "int8")
            assert (first.precision_error is None) == (precision == "float32")
            assert second == before[1]
        stopped.set()
        for thread in threads:
            thread.join()
        assert len(answers) == 2
        assert len(set.union(*answers)) <= 3
        assert {wide, narrow} & set.union(*answers)
        assert client.predict("digits", X, version=1).output.tobytes() == narrow
        assert server.metric("fused_mlp_in_flight") == 0
        assert server.metric("fused_mlp_shadow_mismatches_total", verdict="fused_wrong") == 0
        assert server.metric("fused_mlp_kernel_info", version="1", variant="fused", dtype="int8") == 1


def test_a_precision_that_costs_too_much_is_refused_by_name(repository: Path) -> None:
    save_wild(repository)
    port = free_port()
    with (
        Server(model_repository=repository, admin_port=port) as server,
        Client(server.target) as client,
        AdminClient(f"127.0.0.1:{port}") as admin,
    ):
        before = admin.policies()
        with pytest.raises(PredictError, match=r"wild/1: int8: expected an error of at most 5%.*step '"):
            admin.set_policy("wild", precision="int8")
        with pytest.raises(
            PredictError, match="precision: expected 'float32', 'bfloat16' or 'int8'"
        ) as refused:
            admin.set_policy("digits", precision="int4")  # type: ignore[arg-type]
        assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert admin.policies() == before
        # Meant for all models, it is for those that can have it, as at the start.
        assert {policy.precision for policy in admin.set_policy(precision="int8")} == {"int8"}
        assert client.model("digits").version(1).precision == "int8"
        wild = client.model("wild").version()
        assert wild.precision == "float32"
        assert wild.reason.startswith("stays in float32: int8: expected an error of at most 5%")
        np.testing.assert_allclose(client.predict("wild", [1, 1]).output, [-0.003], rtol=1e-3)


@pytest.mark.parametrize("load", ["eager", "lazy"])
def test_each_model_may_have_a_precision_of_its_own(repository: Path, load: str) -> None:
    import_model(repository / "digits" / "1", repository, "other")
    policy = '{"digits": {"precision": "int8"}, "other": {"precision": "bfloat16"}}'
    with (
        Server(model_repository=repository, policy=policy, load=load) as server,
        Client(server.target) as client,
    ):
        for name in ("digits", "other"):
            client.predict(name, X, version=1)
        assert client.model("digits").version(1).precision == "int8"
        assert client.model("other").version(1).precision == "bfloat16"
