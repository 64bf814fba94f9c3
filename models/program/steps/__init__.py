# SPDX-License-Identifier: Apache-2.0
"""The steps of a program. A step's class holds all that a step is: what it reads, its width, its tensors, what it
computes in numpy, its work and its words. Kernels hold how they run it."""

from typing import Annotated

from pydantic import Field

from fused_mlp.models.program.steps.base import LIST, MAX_TABLE, MAX_WIDTH, AnyStep, Frozen, Kind, Name, Width
from fused_mlp.models.program.steps.groups import Dot, Reduce, Repeat
from fused_mlp.models.program.steps.layout import Concat, Slice
from fused_mlp.models.program.steps.lookups import ABSENT, Argmax, Bag, Bucketize, Embedding, Number, Pick
from fused_mlp.models.program.steps.pairs import Combination, Combine, Compare, Comparison, Where
from fused_mlp.models.program.steps.products import Gated, Linear, Weighted
from fused_mlp.models.program.steps.rows import Affine, Elementwise, Norm, Softmax

Step = Annotated[
    Linear | Gated | Elementwise | Norm | Affine | Softmax | Combine | Compare | Where | Concat | Slice
    | Embedding | Bag | Bucketize | Argmax | Number | Pick | Dot | Reduce | Repeat,
    Field(discriminator="op"),
]  # fmt: skip

__all__ = [
    "ABSENT", "LIST", "MAX_TABLE", "MAX_WIDTH", "Affine", "AnyStep", "Argmax", "Bag", "Bucketize", "Combination",
    "Combine", "Compare", "Comparison", "Concat", "Dot", "Elementwise", "Embedding", "Frozen", "Gated", "Kind",
    "Linear", "Name", "Norm", "Number", "Pick", "Reduce", "Repeat", "Slice", "Softmax", "Step", "Weighted",
    "Where", "Width",
]  # fmt: skip
