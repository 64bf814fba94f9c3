# SPDX-License-Identifier: Apache-2.0
"""Which arm of a model answers: policies, the file that keeps them, pins, canaries and their history."""
