# SPDX-License-Identifier: Apache-2.0
"""The fused kernel for NVIDIA GPUs: Triton programs and cuBLAS behind CUDA graphs. `backend` registers it."""
