"""Replicas behind Envoy as local processes: `make cluster`, and the tests in tests/cluster."""
