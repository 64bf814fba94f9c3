# SPDX-License-Identifier: Apache-2.0
"""The kernel backends, a module each. kernels/registry.py lists them, and imports a module when it is asked for."""
