# SPDX-License-Identifier: Apache-2.0
"""The report of `fused-mlp ab`: a table for the terminal and a page with plots. Needs neither torch nor a kernel."""
