# SPDX-License-Identifier: Apache-2.0
"""Reads rows of numbers from files and stdin, sends them in parts, and writes the outputs."""
