# SPDX-License-Identifier: Apache-2.0
"""Reports: tables, plots and pages in one style. The modules here are the kit that ab and profile use."""
