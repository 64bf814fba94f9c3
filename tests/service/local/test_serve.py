# SPDX-License-Identifier: Apache-2.0
"""`fused_mlp.serve`: real child processes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

import fused_mlp
from fused_mlp.service.local.child_server import ServerDidNotStart
from tests.support.programs import PROGRAMS

MODULE = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def leftovers(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name.startswith("fused-mlp-")]


def test_module_is_served_until_the_block_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSED_MLP_GRPC_PORT", "1")  # of another server of the caller's
    x = torch.randn(3, 4)
    with fused_mlp.serve(MODULE, name="net", threads=1) as server:
        with torch.inference_mode():
            # float32, eight products: some 1e-7 apart.
            np.testing.assert_allclose(server.predict(x).output, MODULE(x).numpy(), atol=1e-5)
        (model,) = server.client.models()
        assert (model.name, model.versions[0].kernels[0].threads) == ("net", 1)
        assert server.address in repr(server)
        with urllib.request.urlopen(server.url, timeout=10) as page:
            assert page.status == 200
        assert leftovers(tmp_path)
    assert "stopped" in repr(server)
    assert not leftovers(tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
    server.stop()  # once more does nothing


def test_program_is_served_and_squeezed() -> None:
    with fused_mlp.serve(PROGRAMS["policy"]) as server:
        outputs = server.predict(np.zeros((2, 8), np.float32), output="*").outputs
        assert {name: y.shape for name, y in outputs.items()} == {"pi": (2, 4), "v": (2,)}


class Doubled(torch.nn.Module):
    """Nothing in it tells how wide a row is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x.flatten(1)


def test_rows_of_a_module_are_described_as_for_from_torch() -> None:
    with fused_mlp.serve(Doubled(), in_features=3, threads=1) as server:
        np.testing.assert_array_equal(server.predict([1.0, 2.0, 3.0]).output, [2, 4, 6])
    with fused_mlp.serve(Doubled(), example=torch.zeros(1, 2, 3), threads=1) as server:
        assert server.mlp.spec.input_shape == (2, 3)
        np.testing.assert_array_equal(server.predict(np.ones((4, 2, 3))).output, np.full((4, 6), 2))
    with pytest.raises(TypeError, match="example and in_features are for torch modules"):
        fused_mlp.serve(PROGRAMS["policy"], in_features=8)


@pytest.mark.parametrize("end", ["pass", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_server_ends_with_the_process_that_started_it(tmp_path: Path, end: str) -> None:
    program = (
        "import tempfile; import fused_mlp; from tests.support.programs import PROGRAMS\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        "server = fused_mlp.serve(PROGRAMS['images'])\n"
        "print(server.pid, flush=True)\n"
        f"{end}\n"
    )
    started = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    wait_for_end(int(started.stdout))
    assert not leftovers(tmp_path)


def wait_for_end(pid: int) -> None:
    """Of a process that is no child of this one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 30)[0], "the server is still there"
    finally:
        os.close(descriptor)


def test_server_that_does_not_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ServerDidNotStart, match="there is no fused backend"):
        fused_mlp.serve(MODULE, backend="nonesuch")
    with pytest.raises(TypeError, match="unknown setting 'thread'; did you mean 'threads'"):
        fused_mlp.serve(MODULE, thread=1)
    with pytest.raises(fused_mlp.ModelLoadError):
        fused_mlp.serve(torch.nn.Conv2d(1, 1, 3))
    assert not leftovers(tmp_path)


def test_missing_server_extra_is_named() -> None:
    program = (
        "import sys\n"
        "sys.modules['pydantic'] = None\n"
        "import fused_mlp\n"
        "try:\n    fused_mlp.serve\nexcept ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "pip install 'fused-mlp[serve]'" in done.stdout, done.stderr
