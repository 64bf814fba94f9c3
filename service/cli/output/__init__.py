# SPDX-License-Identifier: Apache-2.0
"""The output of commands: tables, graphs, pages, progress bars and JSON results."""
