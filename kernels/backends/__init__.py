# SPDX-License-Identifier: Apache-2.0
"""One module per kernel backend; importing it registers the backend."""
