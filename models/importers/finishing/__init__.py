# SPDX-License-Identifier: Apache-2.0
"""From a reader's graph of nodes to an Mlp: folding, names, dtype. `program.py` is its front."""
