# SPDX-License-Identifier: Apache-2.0
"""Bounds the cost of an ONNX file before reading it: its nodes, with those of functions that call functions, and its
external data."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from numpy.typing import NDArray

from fused_mlp.models.errors import ModelLoadError

_MAX_NODES = 20_000
# Values of all constants that are computed: this many, and a multiple of those in the file.
_SMALL_COMPUTED, _MAX_COMPUTED = 1 << 26, 16


def most_computed(stored: Iterable[NDArray[Any]]) -> int:
    return _SMALL_COMPUTED + _MAX_COMPUTED * sum(array.size for array in stored)


def check_nodes(model: Any) -> None:
    """ModelLoadError for a ModelProto with too many nodes once its functions are inlined, or with external data where
    no weights are."""
    from onnx.external_data_helper import uses_external_data  # noqa: PLC0415 - an extra

    functions: dict[tuple[str, str], list[Any]] = {}
    for function in model.functions:  # those of one name differ in their overload
        functions.setdefault((function.domain, function.name), []).extend(function.node)
    counts: dict[tuple[str, str], float] = {}

    def count(nodes: Iterable[Any]) -> float:
        total = 0.0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in functions and key not in counts:
                counts[key] = math.inf  # until it is known: of a function that calls itself
                counts[key] = count(functions[key])
            total += counts.get(key, 1)
            for attribute in node.attribute:
                if any(map(uses_external_data, (attribute.t, *attribute.tensors))):
                    raise ModelLoadError(
                        f"attribute {attribute.name[:100]!r} is external data: expected weights alone to be"
                    )
                total += sum(count(graph.node) for graph in (attribute.g, *attribute.graphs))
        return total

    if count(model.graph.node) > _MAX_NODES:
        raise ModelLoadError(f"its graph has more than {_MAX_NODES} nodes, with its functions inlined")


def load_external_data(model: Any, folder: Path) -> None:
    """Reads the weights that lie beside the file, and nowhere else. What onnx itself checks of a path differs between
    its versions, so none of its readers opens a file."""
    from onnx import TensorProto  # noqa: PLC0415
    from onnx.external_data_helper import uses_external_data  # noqa: PLC0415

    sizes: dict[str, int] = {}
    total = 0
    for tensor in model.graph.initializer:
        if not uses_external_data(tensor):
            continue
        fields = {entry.key: entry.value for entry in tensor.external_data}
        location = fields.get("location", "")
        try:
            offset, length = int(fields.get("offset", 0)), int(fields.get("length", -1))
            with _open_inside(folder, location) as file:
                size = sizes[location] = os.fstat(file.fileno()).st_size
                rest = size - offset
                if not 0 <= offset <= size or not -1 <= length <= rest:
                    raise ValueError(f"expected bytes inside its {size}")
                total += rest if length < 0 else length
                if total > 2 * sum(sizes.values()):  # the same bytes may be two weights, but not two hundred
                    raise ModelLoadError("its weights are larger than the files of external data")
                file.seek(offset)
                tensor.raw_data = file.read(length)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise ModelLoadError(
                f"external data {location[:200]!r} of {tensor.name[:100]!r}: {why}"
            ) from None
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def _open_inside(folder: Path, location: str) -> BinaryIO:
    """Follows no link at any place of the path and opens no file with hard links: they lead out of the folder.
    Raises OSError or ValueError."""
    parts = PurePosixPath(location).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise ValueError("expected a path inside the folder of the file")
    kinds = [os.O_DIRECTORY] * (len(parts) - 1) + [os.O_NONBLOCK]  # a FIFO without a writer would block
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        for part, kind in zip(parts, kinds, strict=True):
            inner = os.open(part, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | kind, dir_fd=opened)
            os.close(opened)
            opened = inner
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise ValueError("expected a regular file with one name, no link")
        return open(opened, "rb")
    except BaseException:
        os.close(opened)
        raise
