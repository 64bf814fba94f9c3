# SPDX-License-Identifier: Apache-2.0
"""Served models: loading, building, routes, and changes of their policies."""
