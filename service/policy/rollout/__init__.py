# SPDX-License-Identifier: Apache-2.0
"""How traffic moves to another version while the server runs: pins, rollbacks and canaries. Works on the catalog; the
rest of policy/ does not know it."""
