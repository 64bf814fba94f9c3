# SPDX-License-Identifier: Apache-2.0
"""Between torch and programs, for from_torch.py, `Mlp.to_torch` and the torch backends: graphs, files, tensors,
formulas, modules."""
