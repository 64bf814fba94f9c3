# SPDX-License-Identifier: Apache-2.0
"""Notices what changes in the repository while the server runs, and has the catalog follow."""
