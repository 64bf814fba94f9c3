# SPDX-License-Identifier: Apache-2.0
"""A server of one's own: a child process that ends with the process that started it."""
