"""Spreads 300 requests over the replicas that a fleet's folder of endpoints lists: `python call.py endpoints`."""

import json
import re
import sys
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from fused_mlp import Client

folder = Path(sys.argv[1])
addresses = (folder / "endpoints.txt").read_text().split()
with Client("ipv4:" + ",".join(addresses), balancing="round_robin") as client:
    for _ in range(300):
        answer = client.predict("digits", np.zeros(64, np.float32))
print(f"300 requests over {len(addresses)} replicas; the last answer has {answer.output.size} numbers")

for replica in json.loads((folder / "replicas.json").read_text()):
    with urlopen(f"{replica['metrics_url']}/metrics") as page:
        metrics = page.read().decode()
    (answered,) = re.findall(r'^fused_mlp_requests_total\{code="OK",.* (\S+)$', metrics, re.MULTILINE)
    print(f"  {replica['replica']} on {replica['address']}: {float(answered):.0f}")
