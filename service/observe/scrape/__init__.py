# SPDX-License-Identifier: Apache-2.0
"""/metrics: the families of metrics, where their values are read, and the text of a scrape."""
