# SPDX-License-Identifier: Apache-2.0
"""torch.compile in a profile: needs a C++ compiler, and half a minute on a slow machine, so it is profiled once."""

import shutil

import pytest

from fused_mlp.kernels.profile import Options, profile, random_mlp


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and there is none"
)
@pytest.mark.filterwarnings("ignore")  # torch.compile's own, about itself
def test_compile_fuses_activations_into_its_kernels():
    found = profile(
        random_mlp([32, 64, 8]), Options(batches=(16,), variants=("eager", "compile"), budget_s=0.02)
    )
    assert found.failures == {}
    eager, compiled = (found.point(variant, 16).counts for variant in ("eager", "compile"))
    assert sum(eager.launches.values()) == 3
    assert compiled.dispatched < eager.dispatched
    assert "aten::relu" not in compiled.launches
