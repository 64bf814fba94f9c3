# SPDX-License-Identifier: Apache-2.0
"""The reports of `fused-mlp profile`: tables, flame graphs, plots and one self-contained page. Measures nothing."""
