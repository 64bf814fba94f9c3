"""Whether torch sees a GPU."""

from __future__ import annotations

import torch


def sees_gpu() -> bool:
    return torch.cuda.is_available()
