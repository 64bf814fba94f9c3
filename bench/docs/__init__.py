# SPDX-License-Identifier: Apache-2.0
"""Writes the figures of README.md and docs/ from bench/results: no number of a benchmark is typed by hand."""
