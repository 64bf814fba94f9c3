# SPDX-License-Identifier: Apache-2.0
"""Comparing both variants: `fused-mlp ab`. Knows the client and two HTTP ports (of the service and of Prometheus), not
the engine or kernels. service/reports/ab shows the result."""
