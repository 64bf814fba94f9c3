# SPDX-License-Identifier: Apache-2.0
"""A model's tensors: numpy arrays, their dtypes and precisions."""
