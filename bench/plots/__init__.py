# SPDX-License-Identifier: Apache-2.0
"""The plots of the docs, drawn as SVG from the result files: the same bytes from the same results, light and dark."""
