# SPDX-License-Identifier: Apache-2.0
"""Encodes named inputs: a dict of arrays, a data frame, a list of dicts with one row each. Columns `x.0`, `x.1`, ...
are the values of one input `x`. Does not know the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.service.client.tensors import as_array, in_wire_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WHOLE = {"int32": pb.INT32, "int64": pb.INT64, "bool": pb.BOOL}
_PART = re.compile(r"(.+)\.(\d+)")


def is_named(x: object) -> bool:
    """A dict, a data frame or a list of dicts."""
    if isinstance(x, (list, tuple)):
        return bool(x) and isinstance(x[0], Mapping)
    return isinstance(x, Mapping) or _is_frame(x)


def encode_named(x: Any) -> list[pb.NamedTensor]:
    """Raises TypeError or ValueError, with the name of the input."""
    columns = _columns(x)
    if not columns:
        raise ValueError("expected inputs by name, got none")
    return [pb.NamedTensor(name=name, tensor=_encode(name, given)) for name, given in columns.items()]


def encode_shared(given: Mapping[str, Any]) -> list[pb.NamedTensor]:
    """Inputs with one row: a value, its values, or (1, ...). Raises TypeError or ValueError, naming the input."""
    tensors = encode_named(given) if given else []
    for named in tensors:
        shape = named.tensor.shape
        if len(shape) == 1 and shape[0] != 1:
            named.tensor.shape[:] = [1, *shape]
    return tensors


def _is_frame(x: object) -> bool:
    """pandas, polars and similar libraries."""
    return hasattr(x, "columns") and hasattr(x, "__getitem__") and not isinstance(x, type)


def _columns(x: Any) -> dict[str, Any]:
    if isinstance(x, Mapping):
        return _joined({str(name): values for name, values in x.items()})
    if _is_frame(x):
        return _joined({str(name): x[name].to_numpy() for name in x.columns})
    names = list(x[0])
    for at, row in enumerate(x):
        if not isinstance(row, Mapping) or set(row) != set(names):
            got = sorted(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
            raise ValueError(f"row {at}: expected the inputs {names} of the first row, got {got}")
    return _joined({str(name): [row[name] for row in x] for name in names})


def _joined(columns: dict[str, Any]) -> dict[str, Any]:
    """Columns x.0, x.1, ... become one, x."""
    import numpy as np  # noqa: PLC0415

    parts: dict[str, dict[int, Any]] = {}
    for name, values in columns.items():
        if (match := _PART.fullmatch(name)) is not None:
            parts.setdefault(match[1], {})[int(match[2])] = values
    joined = {name: values for name, values in columns.items() if _PART.fullmatch(name) is None}
    for name, places in parts.items():
        if name in joined or sorted(places) != list(range(len(places))):
            raise ValueError(
                f"input {name!r}: expected columns {name}.0 to {name}.{len(places) - 1}, got others"
            )
        joined[name] = np.stack([as_array(places[i]) for i in range(len(places))], axis=1)
    return joined


def _encode(name: str, given: Any) -> pb.Tensor:
    try:
        array = _rows(given)
        if array.dtype.kind in "OUS":
            return _encode_strings(array)
        if array.dtype.kind in "iu" and array.dtype.name not in _WHOLE:
            if array.size and (largest := array.max()) >= 1 << 63:
                raise ValueError(f"expected whole numbers below 2^63, got {largest}")
            array = array.astype("int64")
        if (whole := _WHOLE.get(array.dtype.name)) is not None:
            little = array.dtype.newbyteorder("<")
            return pb.Tensor(shape=array.shape, dtype=whole, data=array.astype(little, order="C").tobytes())
        array, dtype = in_wire_dtype(array)
    except (TypeError, ValueError) as error:
        raise type(error)(f"input {name!r}: {error}") from None
    return pb.Tensor(shape=array.shape, dtype=dtype, data=array.tobytes())


def _rows(given: Any) -> NDArray[Any]:
    """given: (rows,) or (rows, ...), or bags: lists of ids of any length. A single value is a row."""
    import numpy as np  # noqa: PLC0415

    if isinstance(given, (list, tuple)) and given and isinstance(given[0], (list, tuple, np.ndarray)):
        array = _one_length(given)
    else:
        array = as_array(given)
    if array.dtype.kind == "O":
        if any(each is None for each in array.reshape(-1)):
            raise ValueError("expected numbers or strings, got None: fill what is missing")
        if array.size and not isinstance(array.reshape(-1)[0], (str, bytes)):
            # A column of lists or arrays, or of numbers that a data frame keeps as objects.
            array = _one_length([np.asarray(each).tolist() for each in array])
    return array.reshape(1) if array.ndim == 0 else array


def _one_length(rows: Sequence[Any]) -> NDArray[Any]:
    """Bags are filled with -1, which stands for no id."""
    import numpy as np  # noqa: PLC0415

    if len({np.size(row) for row in rows}) == 1:
        return as_array(rows)
    bags = [np.asarray(row) for row in rows]
    if any(bag.ndim != 1 or (bag.size and bag.dtype.kind not in "iu") for bag in bags):
        raise ValueError("expected rows of one length: only lists of ids may differ in length")
    filled = np.full((len(bags), max(bag.size for bag in bags)), -1, np.int64)
    for row, bag in zip(filled, bags, strict=True):
        row[: bag.size] = bag
    return filled


def _encode_strings(array: NDArray[Any]) -> pb.Tensor:
    pieces = []
    for each in array.reshape(-1).tolist():
        if not isinstance(each, (str, bytes)):
            raise TypeError(f"expected strings, all of them, got {type(each).__name__}")
        word = each.encode() if isinstance(each, str) else each
        pieces += [len(word).to_bytes(4, "little"), word]
    return pb.Tensor(shape=array.shape, dtype=pb.BYTES, data=b"".join(pieces))
