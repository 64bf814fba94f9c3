# SPDX-License-Identifier: Apache-2.0
"""Rows of numbers from files and stdin, and outputs into files: how they are read, sent in parts and written."""
