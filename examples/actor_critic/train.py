"""Teaches the policy what a simple rule does, and its second head how long the pole will stand. Writes policy.pt.
Your policy comes out of reinforcement learning; what matters here is that it has two heads."""

import random

import torch
from policy import ActorCritic, CartPole
from torch.nn.functional import cross_entropy, mse_loss

HORIZON = 50  # the critic's return: how many of the next 50 steps the pole stands

states, actions, returns = [], [], []
random.seed(0)
for seed in range(60):
    pole, fallen, begin = CartPole(seed), False, len(states)
    while not fallen and len(states) - begin < 200:
        x, speed, angle, turn = pole.state
        right = 0.1 * x + 0.3 * speed + 3 * angle + turn > 0
        states.append(pole.state)
        actions.append(int(right))
        fallen = pole.step(random.choice((0, 1)) if random.random() < seed / 60 else int(right))
    length = len(states) - begin
    returns += [float(min(length - t, HORIZON)) if fallen else float(HORIZON) for t in range(length)]

torch.manual_seed(0)
torch.set_num_threads(1)  # for a model this small, one thread is the fastest
x, action, value = torch.tensor(states), torch.tensor(actions), torch.tensor(returns)
policy = ActorCritic()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
for _ in range(1000):
    rows = torch.randint(0, len(x), (256,))
    answer = policy(x[rows])
    loss = cross_entropy(answer["logits"], action[rows])
    loss = loss + mse_loss(answer["value"] / HORIZON, value[rows] / HORIZON)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"trained on {len(x)} states: loss {loss.item():.3f}")
torch.save(policy.state_dict(), "policy.pt")
