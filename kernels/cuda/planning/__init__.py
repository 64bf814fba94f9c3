# SPDX-License-Identifier: Apache-2.0
"""What is launched for a model on an architecture, as data. Imports neither torch nor triton."""
