# SPDX-License-Identifier: Apache-2.0
"""Readers of what other tools write, one `from_...` each: torch modules, ONNX graphs, checkpoints. The rooms torch/,
onnx/ and checkpoints/ know the sources; building/ and finishing/ make the program. The only part of models/ that may
use torch."""
