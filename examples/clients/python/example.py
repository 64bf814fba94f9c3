"""Sends the demo model its own example row: `python example.py localhost:8001`."""

import sys

import numpy as np

from fused_mlp import Client

with Client(sys.argv[1]) as client:
    row = np.asarray(client.model("digits").versions[0].example, np.float32)
    scores = client.predict("digits", row).output
    print("digit", int(np.argmax(scores)))
