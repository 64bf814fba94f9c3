"""Live traffic: 2000 requests, each from one of 200 users. A user always meets the same variant."""

import random
import sys
from collections import Counter

import numpy as np

from fused_mlp import Client

rows = np.random.default_rng(0).uniform(0, 16, (200, 64)).astype(np.float32)
answered = Counter()
random.seed(0)
with Client(sys.argv[1]) as client:
    for _ in range(2000):
        user = random.randrange(len(rows))
        answer = client.predict("digits", rows[user], metadata={"x-ab-key": f"user-{user}"})
        answered[answer.variant] += 1
print("answered by", ", ".join(f"{variant}: {count}" for variant, count in sorted(answered.items())))
