# SPDX-License-Identifier: Apache-2.0
"""What a model computes: inputs, steps and formulas, as data and in numpy. Knows nothing of files and kernels."""
