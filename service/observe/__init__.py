# SPDX-License-Identifier: Apache-2.0
"""How operators see the server: metrics, health, status, the live page, logs, traces."""
