# SPDX-License-Identifier: Apache-2.0
"""Follows changes of the repository while the server runs."""
