# SPDX-License-Identifier: Apache-2.0
"""The state_dict in a file of torch.save, as arrays. Neither torch nor pickle takes part: no code in the file is run,
and tensors are views of its bytes."""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.importers.checkpoints.pickles import StoredTensor, Unknown, read_pickle
from fused_mlp.models.importers.strided import strided_view
from fused_mlp.models.weights.dtypes import Array, named_dtype

# Bytes of all tensors together: this many times those of the file, and a few more.
_MAX_SHARED, _SMALL = 4, 1 << 20
# Under which training scripts keep the state_dict among optimiser state and epoch counts.
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_OLD_MAGIC = 0x1950A86A20F9469CFC6C  # of files without an archive, which torch wrote before 1.6


def read_state_dict(path: Path) -> Mapping[str, Array]:
    """The arrays are read-only."""
    try:
        with path.open("rb") as file:
            read = _read_archive if file.read(4) == b"PK\x03\x04" else _read_old
            file.seek(0)
            return read(file, path.stat().st_size)
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: no such file") from None
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle may fail in any way
        kind = type(error).__name__
        raise ModelLoadError(
            f"{path}: not a readable state_dict file ({kind}: {first_line(error)})"
        ) from error


def _read_archive(file: BinaryIO, size: int) -> dict[str, Array]:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        for entry in entries:  # torch stores entries as they are, so that they hold no more than the file
            plain = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
            if not plain or entry.flag_bits & ~0x0808:
                raise ModelLoadError(
                    f"{entry.filename[:200]!r} is compressed or encrypted: expected stored bytes"
                )
        if sum(entry.file_size for entry in entries) > size:
            raise ModelLoadError("its entries are larger than the file: expected one of torch.save")
        root = entries[0].filename.partition("/")[0] if entries else ""
        names = {entry.filename for entry in entries}
        if f"{root}/byteorder" in names and archive.read(f"{root}/byteorder") != b"little":
            raise ModelLoadError("its numbers are big-endian: save it on a little-endian machine")
        with archive.open(f"{root}/data.pkl") as stream:
            stored = _stored_tensors(read_pickle(stream).value, size)
        keys = {tensor.storage.key for tensor in stored.values()}
        return _arrays(stored, {key: archive.read(f"{root}/data/{key}") for key in keys})


def _read_old(file: BinaryIO, size: int) -> dict[str, Array]:
    """Pickles (a number, the version, the system, the data, keys of storages), then the storages."""
    first = read_pickle(file).value
    if first != _OLD_MAGIC:
        raise ModelLoadError(_no_state_dict(first))
    read_pickle(file)
    if read_pickle(file).value.get("little_endian") is not True:
        raise ModelLoadError("its numbers are big-endian: save it on a little-endian machine")
    content, storages = read_pickle(file)
    stored = _stored_tensors(content, size)
    data = {}
    for key in read_pickle(file).value:
        if not isinstance(key, str):  # the hash of a tuple goes as deep as the tuple
            raise ModelLoadError("keys of its storages: expected texts")
        (count,) = struct.unpack("<q", file.read(8))
        data[key] = file.read(min(max(count, 0), size) * named_dtype(storages[key].dtype).itemsize)
    return _arrays(stored, data)


def _stored_tensors(content: Any, size: int) -> dict[str, StoredTensor]:
    """`size`: of the file."""
    for wrapper in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ModelLoadError(_no_state_dict(content))
    left = _MAX_SHARED * size + _SMALL
    for name, tensor in content.items():
        if not isinstance(tensor, StoredTensor):
            raise ModelLoadError(_no_state_dict(tensor))
        left -= math.prod(tensor.sizes) * named_dtype(tensor.dtype).itemsize
        if left < 0:
            raise ModelLoadError(f"its tensors are larger than the file, up to {name[:200]!r}")
    return content


def _no_state_dict(found: Any) -> str:
    if isinstance(found, Unknown):
        return (
            f"not a state_dict, or one with Python objects in it, which are not loaded ({found.name}): "
            "save module.state_dict()"
        )
    return "expected a state_dict, a mapping from names to tensors"


def _arrays(stored: Mapping[str, StoredTensor], data: Mapping[str, bytes]) -> dict[str, Array]:
    return {
        name: strided_view(
            data[each.storage.key],
            each.dtype,
            each.sizes,
            each.strides,
            each.offset,
            where=f"tensor {name[:200]!r}",
        )
        for name, each in stored.items()
    }
