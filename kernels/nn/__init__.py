# SPDX-License-Identifier: Apache-2.0
"""The fused kernel as an `nn.Module` and an operator of torch."""
