# SPDX-License-Identifier: Apache-2.0
"""The ten items next to a user, from the server and from numpy."""

import sys

import numpy as np

import fused_mlp

vectors = np.load("vectors.npy")
with fused_mlp.Client(sys.argv[1]) as client:
    vector = client.predict("users", {"user": [7]}).output
    best = client.predict("items", vector, top_k=10)
    scores = vectors @ vector[0]
    expected = np.argsort(-scores, kind="stable")[:10]
    assert best.positions is not None
    same = np.array_equal(best.positions[0], expected)
    close = np.allclose(best.output[0], scores[expected], atol=1e-6)
    print(
        f"float32: {'the items of numpy' if same else 'other items'}, {'the scores too' if close else 'other scores'}"
    )
    narrow = client.predict("items_int8", vector, top_k=10)
    assert narrow.positions is not None
    print(f"int8: {len(np.intersect1d(narrow.positions, best.positions))} of 10 items are those of float32")
