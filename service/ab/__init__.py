# SPDX-License-Identifier: Apache-2.0
"""Comparing both variants: `fused-mlp ab`. Knows the client and two HTTP ports (of the service and of Prometheus),
nothing of the engine or of kernels. How a result is shown is in service/reports/ab."""
