# SPDX-License-Identifier: Apache-2.0
"""Between torch tensors and the numpy arrays that an Mlp holds. numpy has no bfloat16 of its own: its 16 bits are
handed over as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.program.spec import Dtype
from fused_mlp.models.weights.dtypes import Array, named_dtype

TORCH_DTYPES: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def to_tensor(array: Array) -> Tensor:
    """The same memory as a tensor."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_array(tensor: Tensor, name: str) -> Array:
    """The tensor's values: the same memory where it lies on the CPU. `name` is for the error text."""
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized:
        raise ModelLoadError(f"tensor {name!r} is not a plain dense tensor with data")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    dtype = str(tensor.dtype).removeprefix("torch.")
    array: Array
    if dtype == "bfloat16":
        array = tensor.view(torch.uint16).numpy().view(named_dtype(dtype))
    elif dtype.startswith("float8"):
        array = tensor.view(torch.uint8).numpy().view(named_dtype(dtype))
    else:
        array = tensor.numpy()
    return array


class ArrayMapping(Mapping[str, Array]):
    """A state_dict, of tensors or arrays, as arrays. Each is converted when it is asked for: a checkpoint on a GPU
    may hold far more than the part that is read."""

    def __init__(self, tensors: Mapping[str, Tensor | Array]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Array:
        found = self._tensors[name]
        return to_array(found, name) if isinstance(found, Tensor) else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
