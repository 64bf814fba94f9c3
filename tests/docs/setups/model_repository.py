# SPDX-License-Identifier: Apache-2.0
"""repo/net/1: a small model, as an import leaves it; net.py and weights.pt for a second version, and rows.npy with its
outputs in outputs.npy."""

from pathlib import Path

import numpy as np
import torch

import fused_mlp

Path("net.py").write_text(
    "from torch import nn\n\n\n"
    "def make_net():\n    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))\n"
)
torch.manual_seed(0)
for version in (1, 2):
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
    if version == 1:
        fused_mlp.save(fused_mlp.from_torch(net), "repo/net/1")
torch.save(net.state_dict(), "weights.pt")
x = torch.randn(32, 8)
np.save("rows.npy", x.numpy())
np.save("outputs.npy", net(x).detach().numpy())
