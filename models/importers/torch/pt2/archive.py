# SPDX-License-Identifier: Apache-2.0
"""Reads the archive that torch.export.save writes, without torch's loaders, which unpickle, evaluate expressions and
open shared libraries. Only entries of known names are accepted, and of those only JSON and raw tensors are read."""

from __future__ import annotations

import re
import stat
import zipfile
from pathlib import Path
from typing import Any, Literal

from pydantic_core import from_json

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.strided import strided_view
from fused_mlp.models.weights.dtypes import Array

GRAPH = "models/model.json"
_CONFIG = "data/{0}/model_{0}_config.json"
_READ = re.compile(
    r"archive_format|byteorder|models/model\.json|data/weights/(weight_\d{1,6}|model_weights_config\.json)"
    r"|data/constants/(tensor_\d{1,6}|model_constants_config\.json)"
)
# Entries of every normal file that carry nothing the import needs. The sample inputs are a pickle.
_IGNORED = re.compile(
    r"archive_version|version|\.data/version|\.data/serialization_id|\.format_version|\.storage_alignment"
    r"|data/sample_inputs/model\.pt|extra/.+"
)
_MAX_ENTRIES = 100_000
_MAX_JSON = 64 << 20
_MAX_NAME = 200
# Bytes of all tensors together: this many times those of the file, and a few more.
_MAX_SHARED, _SMALL = 4, 32 << 20
_STRIDED = 7
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64", 12: "bool",
    13: "bfloat16",
}  # fmt: skip


class Archive:
    def __init__(self, path: Path) -> None:
        if not zipfile.is_zipfile(path):
            raise ModelLoadError("not a .pt2 file: expected an archive of torch.export.save")
        self._file = zipfile.ZipFile(path)
        self._entries: dict[str, zipfile.ZipInfo] = {}
        size = path.stat().st_size
        self._left = _MAX_SHARED * size + _SMALL
        try:
            self._index(size)
            self._expect("archive_format", b"pt2")
            self._expect("byteorder", b"little")
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def json(self, name: str) -> Any:
        """Parsed JSON; its depth is bounded by the parser."""
        return from_json(self._read(name, _MAX_JSON), allow_inf_nan=False)

    def tensors(self, kind: Literal["weights", "constants"]) -> dict[str, Array]:
        """Copies of the stored tensors by their name in the program. Names of one tensor share one array."""
        prefix = "weight_" if kind == "weights" else "tensor_"
        made: dict[str, Array] = {}
        same: dict[str, Array] = {}
        for name, stored in self.json(_CONFIG.format(kind))["config"].items():
            path = str(stored["path_name"])
            if stored["use_pickle"] or not re.fullmatch(rf"{prefix}\d{{1,6}}", path):
                raise ModelLoadError(
                    f"data/{kind}/{path[:_MAX_NAME]} ({name[:_MAX_NAME]}) is a pickled object, which is not loaded: "
                    "keep plain tensors alone in the module"
                )
            meta = stored["tensor_meta"]
            key = f"{path} {meta}"
            if key not in same:
                same[key] = _tensor(self._read(f"data/{kind}/{path}"), meta, name)
                self._left -= same[key].nbytes
                if self._left < 0:
                    raise ModelLoadError(f"its tensors are larger than the file, up to {name[:_MAX_NAME]!r}")
            made[name] = same[key]
        return made

    def _index(self, size: int) -> None:
        entries = self._file.infolist()
        if len(entries) > _MAX_ENTRIES:
            raise ModelLoadError(f"the archive has {len(entries)} entries: expected at most {_MAX_ENTRIES}")
        root = entries[0].filename.partition("/")[0] if entries else ""
        for entry in entries:
            first, _, name = entry.filename.partition("/")
            shown = repr(entry.filename[:_MAX_NAME])
            if first != root or not (_READ.fullmatch(name) or _IGNORED.fullmatch(name)):
                raise ModelLoadError(
                    f"{shown} does not belong in a .pt2 file: expected the graph and plain tensors that "
                    "torch.export.save of a recent torch writes"
                )
            if name in self._entries:
                raise ModelLoadError(f"{shown} is in the archive twice")
            # torch stores entries as they are. Compressed, encrypted or linked ones come from another writer.
            plain = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
            if not plain or entry.flag_bits & ~0x0808 or stat.S_ISLNK(entry.external_attr >> 16):
                raise ModelLoadError(f"{shown} is compressed, encrypted or a link: expected stored bytes")
            self._entries[name] = entry
        # Also bounds what is read: entries that overlap would add up to more than the file.
        if sum(entry.file_size for entry in entries) > size:
            raise ModelLoadError("its entries are larger than the file")

    def _read(self, name: str, limit: int | None = None) -> bytes:
        entry = self._entries.get(name)
        if entry is None:
            raise ModelLoadError(f"there is no {name} in it: save the program again with a recent torch")
        if limit is not None and entry.file_size > limit:
            raise ModelLoadError(
                f"{name} is larger than {limit >> 20} MiB, too large for the graph of an MLP"
            )
        return self._file.read(entry)

    def _expect(self, name: str, content: bytes) -> None:
        if (found := self._read(name, 1 << 10).strip()) != content:
            raise ModelLoadError(f"{name}: expected {content.decode()!r}, got {found[:_MAX_NAME]!r}")


def _tensor(data: bytes, meta: Any, name: str) -> Array:
    where = f"tensor {name[:_MAX_NAME]!r}"
    if meta["dtype"] not in _DTYPES or meta["layout"] != _STRIDED:
        raise ModelLoadError(f"{where} is not a plain dense tensor of numbers")
    sizes, strides = [[_size(each) for each in meta[key]] for key in ("sizes", "strides")]
    return strided_view(
        data, _DTYPES[meta["dtype"]], sizes, strides, _size(meta["storage_offset"]), where=where
    ).copy()


def _size(given: Any) -> int:
    match given:
        case {"as_int": int(size)} if 0 <= size < 1 << 62:
            return size
    raise ModelLoadError(f"expected a size, a whole number, got {str(given)[:_MAX_NAME]}")
