# SPDX-License-Identifier: Apache-2.0
"""What is served, and under which policy."""
