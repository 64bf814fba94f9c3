# SPDX-License-Identifier: Apache-2.0
"""The kernel backends cpu, torch and eager, and the lowering of programs for cpu. kernels/registry.py lists backends
and imports the module of one when it is asked for."""
