# SPDX-License-Identifier: Apache-2.0
"""The launches of a model on an architecture, as data. Imports neither torch nor triton."""
