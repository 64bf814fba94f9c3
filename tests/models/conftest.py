# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from fused_mlp import models
from fused_mlp.models import Mlp


@pytest.fixture
def small_module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3), nn.Softmax(dim=-1))


@pytest.fixture
def small_mlp(small_module: nn.Sequential) -> Mlp:
    return models.from_torch(small_module)
