"""Sends 1000 points to the server over gRPC and compares its answers with those of torch."""

import sys

import numpy as np
import torch
from model import Spirals, make_points

from fused_mlp import Client

points, spirals = make_points(1000, seed=2)
net = Spirals()
net.load_state_dict(torch.load("spirals.pt"))
with torch.inference_mode():
    expected = net(points).numpy()

with Client(sys.argv[1]) as client:
    answer = client.predict("spirals", points)  # torch tensors and numpy arrays alike

print(f"version {answer.version}, {answer.variant}, {answer.output.shape[0]} rows")
print(f"right: {np.mean(answer.output.argmax(axis=1) == spirals.numpy()):.1%}")
print(f"largest difference from torch: {np.abs(answer.output - expected).max():.1e}")
np.testing.assert_allclose(answer.output, expected, atol=1e-5)
