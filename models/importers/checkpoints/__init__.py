# SPDX-License-Identifier: Apache-2.0
"""Tensors by name, for from_checkpoint.py: the files they lie in, and what their names say."""
