"""Sends one request after the other, from two threads, until it is stopped: the callers of the service."""

import sys
from threading import Thread

import numpy as np

from fused_mlp import Client


def call(target: str) -> None:
    row = np.ones(32, np.float32)
    with Client(target) as client:
        while True:
            client.predict("ranker", row)


for _ in range(2):
    Thread(target=call, args=(sys.argv[1],)).start()
