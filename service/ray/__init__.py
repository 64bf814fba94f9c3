# SPDX-License-Identifier: Apache-2.0
"""Replicas of the server on a Ray cluster: Ray places and supervises them, requests never pass through it.

`up` and the other commands talk to one controller (controller.py), which starts replicas (replica.py), decides by plain
functions what to do about them (scaling.py, plan.py) and writes where they are (endpoints.py). Only cluster.py,
controller.py and replica.py import ray."""
