# SPDX-License-Identifier: Apache-2.0
"""Puts a program together from the operations that a reader meets in a graph; `builder.py` is its front. Knows nothing
of torch, ONNX or files."""
