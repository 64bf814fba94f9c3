"""Readers of what other tools write: torch modules, ONNX graphs, checkpoints.
The only part of models/ that may use torch."""
