# SPDX-License-Identifier: Apache-2.0
"""A whole server on the fake NVIDIA driver: requests over gRPC, through the engine and the native launcher, are
answered by compiled PTX."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fused_mlp import models
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.client.admin import AdminClient
from fused_mlp.service.settings.settings import DEMO_REPOSITORY
from tests.support import fake_cuda
from tests.support.server import Server, free_port

pytest.importorskip("triton")
X = np.random.default_rng(1).uniform(0, 16, (100, 64)).astype(np.float32)


def eager(x: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        result: np.ndarray = (
            models.load(DEMO_REPOSITORY / "digits" / "1").to_torch()(torch.from_numpy(x)).numpy()
        )
    return result


def test_an_answer_over_grpc_comes_from_compiled_ptx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_file = tmp_path / "fail"
    for name, value in fake_cuda.environment(fail_file=fail_file).items():
        if not name.startswith("FUSED_MLP_"):
            monkeypatch.setenv(name, value)
    port = free_port()
    with (
        Server(device="cuda", backend="triton", libcuda=fake_cuda.library(), admin_port=port) as server,
        Client(server.target) as client,
        AdminClient(f"127.0.0.1:{port}") as admin,
    ):
        (version,) = client.model("digits").versions
        (kernel,) = version.kernels
        assert kernel.backend == "triton"
        assert kernel.isa == "sm_80"
        assert "launched natively" in kernel.reason
        assert "launched natively" in server.log()
        expected = eager(X)
        for rows in (1, 20, 100):  # in mapped memory, and copied by a graph
            output = client.predict("digits", X[:rows]).output
            # Probabilities in float32: a few roundings of sums of 64 products.
            np.testing.assert_allclose(output, expected[:rows], atol=2e-6)
        # Eager layers are torch's own kernels, in machine code that only a GPU runs.
        with pytest.raises(PredictError, match="eager: torch sees no CUDA device"):
            admin.set_policy("digits", split=0.5)
        np.testing.assert_allclose(client.predict("digits", X[:1]).output, expected[:1], atol=2e-6)
        fail_file.write_text("cuGraphLaunch 701")
        np.testing.assert_allclose(client.predict("digits", X[:1]).output, expected[:1], atol=2e-6)
        with pytest.raises(PredictError, match="INTERNAL"):
            client.predict("digits", X)
        fail_file.write_text("cuLaunchKernel 701")  # one that the device survives
        with pytest.raises(PredictError, match="INTERNAL"):
            client.predict("digits", X[:1])
        fail_file.unlink()
        np.testing.assert_allclose(client.predict("digits", X[:1]).output, expected[:1], atol=2e-6)
        fail_file.write_text("kernel 719")  # one that it does not
        with pytest.raises(PredictError, match="INTERNAL"):
            client.predict("digits", X[:1])
        fail_file.unlink()
        with pytest.raises(PredictError, match="INTERNAL"):
            client.predict("digits", X[:1])
        assert "cuda:0 is lost: CUDA_ERROR_LAUNCH_FAILED" in server.log()
        deadline = time.monotonic() + 30  # told by another thread
        while (page := server.get("/healthz"))[0] == 200 and time.monotonic() < deadline:
            pass
        assert page[0] == 503
        assert "cuda:0 is lost" in page[1]
        assert server.metric("fused_mlp_kernel_errors_total") == 4
