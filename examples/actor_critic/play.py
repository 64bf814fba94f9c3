"""Balances the pole for 300 steps; each action is asked of the server."""

import sys
import time

import numpy as np
from policy import CartPole

from fused_mlp import Client

pole, fallen, steps, values = CartPole(seed=1000), False, 0, []
with Client(sys.argv[1]) as client:
    for output in client.model("policy").version().outputs:
        print(f"output {output.name}: {output.width} number(s)")
    began = time.perf_counter()
    while not fallen and steps < 300:
        answer = client.predict("policy", np.float32(pole.state), output="*")
        fallen = pole.step(int(answer.outputs["logits"].argmax()))
        values.append(float(answer.outputs["value"]))
        steps += 1
    taken = time.perf_counter() - began
print(f"the pole stood for {steps} steps; the critic expected {np.mean(values):.0f} of the next 50")
print(f"{1e6 * taken / steps:.0f} us per step, the environment included")
