# SPDX-License-Identifier: Apache-2.0
"""In which dtype a GPU runs weights that are kept in fewer bits. What loads a model and what fills a cache for it both
ask here."""

from __future__ import annotations

from fused_mlp.models import Dtype, MlpSpec
from fused_mlp.models.quantization import Precision


def dtype_on_gpu(spec: MlpSpec, precision: Precision, *, kept: bool) -> Dtype:
    """bfloat16, which tensor cores multiply and which has the range of float32. `kept`: some matrices are in float32,
    because fewer bits cost too much; a bfloat16 version must not lose them here either."""
    if spec.dtype != "float32" or precision == "float32" or (precision == "bfloat16" and kept):
        return spec.dtype
    return "bfloat16"
