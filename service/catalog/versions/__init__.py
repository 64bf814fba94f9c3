# SPDX-License-Identifier: Apache-2.0
"""Loads versions: at the start, on demand, and after changes of their files. Builds their kernels, within the
memory."""
