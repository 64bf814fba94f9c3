# SPDX-License-Identifier: Apache-2.0
"""The table of ATen operators: what each is in a program. One function per operator, with the operator's own
arguments; values that depend on the rows come as Rows, all others as tensors and numbers."""

from fused_mlp.models.importers.torch.aten import arithmetic, features, lookups, products, views  # noqa: F401 - they fill the table
from fused_mlp.models.importers.torch.aten.calls import ON_IDS, OPERATORS, Call, RowNumbers, one_row
from fused_mlp.models.importers.torch.aten.refusals import REFUSED

__all__ = ["ON_IDS", "OPERATORS", "REFUSED", "Call", "RowNumbers", "one_row"]
