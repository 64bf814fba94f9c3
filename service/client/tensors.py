# SPDX-License-Identifier: Apache-2.0
"""Arrays to wire tensors and back, bit for bit. numpy is imported on first use, because commands such as `models`
need no arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from fused_mlp.protos import fused_mlp_pb2 as pb

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    ArrayLike: TypeAlias = NDArray[Any] | torch.Tensor | Sequence[Any]
    # For a model with named inputs: a dict of arrays, a data frame, or a dict for each row.
    Rows: TypeAlias = ArrayLike | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Any

_WIRE_TYPES = {"float32": pb.FP32, "float16": pb.FP16, "bfloat16": pb.BF16, "float64": pb.FP64}
_NUMPY_TYPES = {pb.DATA_TYPE_UNSPECIFIED: "<f4", pb.FP32: "<f4", pb.FP16: "<f2", pb.FP64: "<f8"}


def encode(x: ArrayLike) -> tuple[pb.Tensor, bool]:
    """x: (..., width), or (..., *shape) with the model's own shape of a row -> a tensor of rows, and whether x is one
    row without a dimension for rows.

    Floats travel in their own dtype; integers, booleans and lists as float32.
    """
    array, dtype = _as_array(x)
    if array.ndim == 0:
        raise ValueError("expected a row or rows of numbers, got a single number: wrap it in a list")
    shape = array.shape if array.ndim > 1 else (1, *array.shape)
    return pb.Tensor(shape=shape, dtype=dtype, data=array.tobytes()), array.ndim == 1


def decode(tensor: pb.Tensor, one_row: bool, squeeze: bool) -> NDArray[Any]:
    """A tensor of rows -> (rows, width), (width,) for one row without a dimension for rows. Without the width when the
    model squeezes it. bfloat16, which numpy lacks, becomes float32, exactly."""
    import numpy as np  # noqa: PLC0415

    if tensor.dtype == pb.BF16:
        halves = np.frombuffer(tensor.data, "<u2")
        array = (halves.astype(np.uint32) << 16).view(np.float32)
    elif tensor.values:
        array = np.array(tensor.values, np.float32)
    else:
        # copy: a view of the message would be read-only, and torch.from_numpy warns about read-only arrays.
        array = np.frombuffer(tensor.data, _NUMPY_TYPES[tensor.dtype]).copy()
    shape = tuple(tensor.shape) or (1, array.size)
    return array.reshape(shape[one_row : -1 if squeeze else None])


def decode_positions(response: pb.PredictResponse, one_row: bool) -> NDArray[Any] | None:
    """(best,) rows, or (rows, best) columns of each row; None for an answer with all scores."""
    shape = tuple(response.output.shape)
    if not response.positions and 0 not in shape:
        return None
    positions = whole(response.positions)
    return positions if positions.size == shape[0] else positions.reshape(shape[one_row:])


def whole(numbers: Sequence[int]) -> NDArray[Any]:
    import numpy as np  # noqa: PLC0415

    return np.array(numbers, np.int64)


def _as_array(x: ArrayLike) -> tuple[NDArray[Any], pb.DataType]:
    import numpy as np  # noqa: PLC0415

    torch = sys.modules.get("torch")  # a caller that has a tensor has imported torch
    if torch is not None and isinstance(x, torch.Tensor):
        tensor = x.detach().cpu().contiguous()
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.uint16).numpy(), pb.BF16
        return in_wire_dtype(tensor.numpy())
    return in_wire_dtype(x if isinstance(x, np.ndarray) else _from_sequence(x))


def as_array(x: Any) -> NDArray[Any]:
    """With the dtype that it has; bfloat16 of torch becomes float32."""
    import numpy as np  # noqa: PLC0415

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        tensor = x.detach().cpu()
        return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())
    if isinstance(x, (str, bytes)) or (isinstance(x, (list, tuple)) and x and isinstance(x[0], (str, bytes))):
        return np.array(x, object)  # fixed-size strings would lose zero bytes at their ends
    try:
        return np.asarray(x)
    except ValueError as error:
        raise ValueError(f"expected rows of one length: {error}") from None


def in_wire_dtype(array: NDArray[Any]) -> tuple[NDArray[Any], pb.DataType]:
    import numpy as np  # noqa: PLC0415

    if array.dtype.kind in "biu":
        array = array.astype(np.float32)
    # By name, which also finds bfloat16 arrays of ml_dtypes without importing ml_dtypes.
    wire_type = _WIRE_TYPES.get(array.dtype.name)
    if wire_type is None:
        raise TypeError(
            f"expected float32, float16, bfloat16, float64 or integers, got {array.dtype}: convert it"
        )
    little = array.dtype.newbyteorder("<") if wire_type != pb.BF16 else array.dtype
    return np.asarray(array, little, order="C"), wire_type


def _from_sequence(x: object) -> NDArray[Any]:
    import numpy as np  # noqa: PLC0415

    try:
        return np.asarray(x, np.float32)
    except (TypeError, ValueError) as error:
        raise TypeError(f"expected rows of numbers, all of one length: {error}") from None
