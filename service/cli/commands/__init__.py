# SPDX-License-Identifier: Apache-2.0
"""The commands of `fused-mlp`, a module each; a module is imported when its command runs."""
