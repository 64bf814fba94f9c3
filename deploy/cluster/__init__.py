# SPDX-License-Identifier: Apache-2.0
"""Replicas behind Envoy as local processes: `make cluster`, and the tests in tests/cluster."""
