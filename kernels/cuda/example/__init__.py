# SPDX-License-Identifier: Apache-2.0
"""A minimal fused MLP in CUDA C++, to read and to change: `fused_mlp.cu`, compiled by nvcc; backend `cuda-example`."""
