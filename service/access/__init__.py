# SPDX-License-Identifier: Apache-2.0
"""Certificates, callers and their keys, and files that are reread."""
