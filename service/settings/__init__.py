# SPDX-License-Identifier: Apache-2.0
"""The settings of the service: the record, its limits, and the texts of --help and of the tables."""
