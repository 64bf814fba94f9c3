# SPDX-License-Identifier: Apache-2.0
"""The plots of the docs, by matplotlib from the result files: light and dark SVG, the same bytes each time."""
