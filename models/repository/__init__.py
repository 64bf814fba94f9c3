# SPDX-License-Identifier: Apache-2.0
"""Versions on disk: how they are written, found, checked and read."""
