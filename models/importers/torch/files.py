# SPDX-License-Identifier: Apache-2.0
"""Torch models that lie in files: programs of torch.export (.pt2), TorchScript, pickled modules, and Python code that
makes a module. Each becomes a module, which from_torch reads."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.importers.checkpoints.safetensors import SafetensorsCheckpoint
from fused_mlp.models.importers.checkpoints.state_dicts import read_state_dict
from fused_mlp.models.importers.from_torch import read_module
from fused_mlp.models.importers.torch.export import failing_line, quietly
from fused_mlp.models.importers.torch.pt2.program import read_program
from fused_mlp.models.importers.torch.tensors import to_tensor
from fused_mlp.models.importers.torch.trial import GIVE_SHAPE, row_widths
from fused_mlp.models.program.spec import Dtype
from fused_mlp.models.weights.mlp import Mlp

# Prefixes that wrappers put before the names in a state_dict.
_WRAPPED = ("module.", "_orig_mod.")


def read_exported(path: Path, *, dtype: Dtype | None = None) -> Mlp:
    """A file of torch.export.save. No code in it is run."""
    try:
        with quietly():
            module, arguments = read_program(path)
            return _read(path, module, None, dtype, arguments)
    except ModelLoadError as error:
        text = str(error)
        raise ModelLoadError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from error
    except Exception as error:  # whatever torch says of operators that are used in odd ways
        text = f"{type(error).__name__}: {first_line(error)}"
        raise ModelLoadError(f"{path}: not a readable .pt2 file: {text}") from error


def read_script(path: Path, *, row_shape: Sequence[int] | None = None, dtype: Dtype | None = None) -> Mlp:
    """A file of torch.jit.save. Loading it runs code in it (`__setstate__`), and so does reading it."""
    try:
        with quietly():
            script = torch.jit.load(str(path), map_location="cpu").eval()  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ModelLoadError(f"{path}: not a readable TorchScript file: {first_line(error)}") from error
    shapes = [tuple(row_shape)] if row_shape else [(width,) for width in row_widths(script)]
    failure: Exception | None = None
    for shape in shapes:
        try:
            return _read(path, _from_script(script, shape), shape, dtype)
        except ModelLoadError:
            raise
        except Exception as error:
            failure = failure or error
    raise ModelLoadError(
        f"{path}: TorchScript that cannot be followed: {first_line(failure) if failure else 'it has no weights'}; "
        "give the shape of its rows, row_shape=(784,), or import the module it was made from"
    )


def _from_script(script: Any, shape: tuple[int, ...]) -> nn.Module:
    from torch._export.converter import TS2EPConverter  # noqa: PLC0415 - seldom needed

    dtype = next((each.dtype for each in script.parameters()), torch.float32)
    rows = torch.zeros(2, *shape, dtype=dtype)
    with torch.no_grad(), quietly():
        script(rows)
        return _unguarded(TS2EPConverter(script, (rows,)).convert())


def _unguarded(program: torch.export.ExportedProgram) -> nn.Module:
    """Its module, without the checks for the number of rows that it was exported with."""
    options = (
        {"check_guards": False} if "check_guards" in inspect.signature(program.module).parameters else {}
    )
    module: nn.Module = program.module(**options)
    module._forward_pre_hooks.clear()
    return module


def read_pickled_module(
    path: Path, *, row_shape: Sequence[int] | None = None, dtype: Dtype | None = None
) -> Mlp:
    """A file of torch.save(module). Loading it runs whatever code is in it."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # where its classes may lie
    try:
        with quietly():
            content = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise ModelLoadError(
            f"{path}: the pickle cannot be loaded: {type(error).__name__}: {first_line(error)}"
        ) from error
    if not isinstance(content, nn.Module):
        raise ModelLoadError(f"{path}: expected a pickled module, got {type(content).__name__}")
    return _read(path, content, row_shape, dtype)


def read_factory(
    source: str,
    *,
    state_dict: Path | None = None,
    row_shape: Sequence[int] | None = None,
    dtype: Dtype | None = None,
) -> Mlp:
    """`path/to/model.py:factory` or `package.module:callable`: what it returns when it is called without arguments.
    `example_inputs` of the module, of its class or of the file is an example of what it takes: tensors, or a function
    that makes them."""
    module, example = _make(source)
    if state_dict is not None:
        _load_into(module, state_dict)
    return _read(source, module, row_shape, dtype, example)


def _read(
    source: object,
    module: nn.Module,
    row_shape: Sequence[int] | None,
    dtype: Dtype | None,
    example: Any = None,
) -> Mlp:
    if row_shape is not None:
        example = torch.zeros(1, *row_shape)
    try:
        return read_module(module, example, dtype=dtype).mlp
    except ModelLoadError as error:
        text = str(error).replace(GIVE_SHAPE, "give the shape of a row, row_shape=(784,) or row_shape=(3, 8)")
        text = re.sub(
            r"give an example( of each)?, example=",
            r"write an example\1 into the file, example_inputs = ",
            text,
        )
        raise ModelLoadError(f"{source}: {text}") from error


def _make(source: str) -> tuple[nn.Module, Any]:
    """The module, and an example of what it takes where there is one."""
    place, _, name = source.rpartition(":")
    file = found = _import(source, place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ModelLoadError(f"{source}: there is no {part!r} in {place}")
        found = getattr(found, part)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise ModelLoadError(f"{source}: expected a callable or a module, got {type(found).__name__}")
        try:
            found = found()
        except Exception as error:
            raise ModelLoadError(f"{source}: {_failure(error)}") from error
    if not isinstance(found, nn.Module):
        raise ModelLoadError(f"{source}: expected it to return a torch.nn.Module, got {type(found).__name__}")
    example = getattr(found, "example_inputs", getattr(file, "example_inputs", None))
    if callable(example):
        try:
            example = example()
        except Exception as error:
            raise ModelLoadError(f"{source}: example_inputs: {_failure(error)}") from error
    return found, example


def _import(source: str, place: str) -> Any:
    path = Path(place)
    folder = str(path.resolve().parent) if path.suffix == ".py" else str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # so that it can import what lies beside it
    try:
        if path.suffix != ".py":
            return importlib.import_module(place)
        if not path.is_file():
            raise ModelLoadError(f"{place}: no such file")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # dataclasses and pickles look their module up
        spec.loader.exec_module(module)
    except ModelLoadError:
        raise
    except Exception as error:
        raise ModelLoadError(f"{source}: {_failure(error)}") from error
    return module


def _failure(error: Exception) -> str:
    line = failing_line(error)
    return f"{type(error).__name__}: {first_line(error)}" + (f" ({line})" if line else "")


def _load_into(module: nn.Module, path: Path) -> None:
    if not path.exists():
        raise ModelLoadError(f"{path}: no such file")
    is_safetensors = path.suffix in (".safetensors", ".json") or path.is_dir()
    checkpoint = SafetensorsCheckpoint(path) if is_safetensors else read_state_dict(path)
    tensors: Mapping[str, Tensor] = {name: to_tensor(array.copy()) for name, array in checkpoint.items()}
    for prefix in _WRAPPED:
        if tensors and all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    tensors = _without_prefix(tensors, module.state_dict().keys())
    try:
        found = module.load_state_dict(dict(tensors), strict=False)
    except RuntimeError as error:  # shapes
        raise ModelLoadError(f"{path}: {' '.join(str(error).split())}") from error
    for text, names in (
        ("has no", found.missing_keys),
        ("has, and the module has not,", found.unexpected_keys),
    ):
        if names:
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelLoadError(f"{path} {text} {names[0]!r}{others}: expected the module's own state_dict")


def _without_prefix(tensors: Mapping[str, Tensor], own: Set[str]) -> Mapping[str, Tensor]:
    """Without what a trainer's class puts in front of all names: `model.` of Lightning."""
    while tensors and not own & tensors.keys():
        heads = {name.partition(".")[0] for name in tensors}
        if len(heads) > 1 or not all("." in name for name in tensors):
            break
        tensors = {name.partition(".")[2]: tensor for name, tensor in tensors.items()}
    return tensors
