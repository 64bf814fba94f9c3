"""Trains the model for a few seconds and writes its weights to spirals.pt."""

import torch
from model import Spirals, make_points

torch.manual_seed(0)
torch.set_num_threads(1)  # for a model this small, one thread is the fastest
net = Spirals()
points, spirals = make_points(1000, seed=1)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(300):
    optimizer.zero_grad()
    loss = torch.nn.functional.nll_loss(net(points).log(), spirals)
    loss.backward()
    optimizer.step()

points, spirals = make_points(1000, seed=2)
right = (net(points).argmax(dim=1) == spirals).float().mean()
print(f"right on new points: {right:.1%}")
torch.save(net.state_dict(), "spirals.pt")
