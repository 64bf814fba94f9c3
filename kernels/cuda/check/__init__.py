# SPDX-License-Identifier: Apache-2.0
"""The check ahead of time: every tile compiled for every architecture, without a GPU. `python -m
fused_mlp.kernels.cuda.check` runs it."""
