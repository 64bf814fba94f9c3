"""Comparing both variants and saying what came of it: `fused-mlp ab`. Knows the client and two HTTP ports (of the
service and of Prometheus), nothing of the engine or of kernels."""
