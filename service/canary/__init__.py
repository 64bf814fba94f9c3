# SPDX-License-Identifier: Apache-2.0
"""Automatic canaries: a new arm gets a growing share of the traffic while it answers as well as the old one."""
