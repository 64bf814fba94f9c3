# SPDX-License-Identifier: Apache-2.0
"""`fused_mlp.serve(model)`: a model of this process served by a child process, for notebooks and tests."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fused_mlp.models import Mlp, load, save
from fused_mlp.service.client import Client, Prediction
from fused_mlp.service.local.child_server import ADDRESSES, PREFIX, ChildServer
from fused_mlp.service.settings.settings import Settings

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from fused_mlp.service.client.tensors import ArrayLike

# Of the caller's own settings: what is for other servers, or would keep this one's only client out.
_DROPPED = ("TLS_", "TARGET", "POLICY", "ADMIN_", "CALLERS", "METRICS_TLS", "MODEL_REPOSITORY")


def serve(
    model: nn.Module | Mlp | str | os.PathLike[str],
    name: str = "model",
    *,
    example: torch.Tensor | NDArray[Any] | Sequence[Any] | None = None,
    in_features: int | None = None,
    **settings: object,
) -> LocalServer:
    """Serve a model from a child process on free ports of this machine; returns when it answers.

        server = fused_mlp.serve(module)
        server.predict(x).output

    `model`: a torch module, an Mlp, or a file or folder that `fused_mlp.load` reads. `example` and `in_features` say
    what rows a torch module takes, as for `fused_mlp.from_torch`. `settings` are those of `fused-mlp serve`:
    threads=1, variant="unfused". The server ends with `stop()`, with the object, with the `with` block that it is used
    in, or with this process, whatever ends that."""
    for setting in settings.keys() - Settings.model_fields.keys():
        close = get_close_matches(setting, Settings.model_fields, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ", as `fused-mlp serve --help` lists them"
        raise TypeError(f"fused_mlp.serve: there is no setting {setting!r}{hint}")
    mlp = _read(model, example, in_features)
    folder = tempfile.mkdtemp(prefix="fused-mlp-")
    try:
        save(mlp, Path(folder) / name / "1")
        return LocalServer(name, mlp, folder, settings)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


class LocalServer:
    """`client` is connected to `address`; `url` is the live page."""

    def __init__(self, name: str, mlp: Mlp, folder: str, settings: dict[str, Any]) -> None:
        child = ChildServer(_environment(folder, settings), folder)
        self.name = name
        self.mlp = mlp
        self.address = child.target
        self.url = f"{child.metrics_url}/"
        self.pid = child.pid
        self.client = Client(child.target)
        self._end = weakref.finalize(self, _end, self.client, child, folder)  # also when the interpreter ends

    def predict(self, x: ArrayLike, **options: Any) -> Prediction:
        """As `client.predict(name, x)`."""
        return self.client.predict(self.name, x, **options)

    def stop(self) -> None:
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"at {self.address}" if self._end.alive else "stopped"
        return f"<LocalServer {self.name!r} {state}: {self.mlp.spec.summary()}>"


def _end(client: Client, child: ChildServer, folder: str) -> None:
    client.close()
    child.stop()
    shutil.rmtree(folder, ignore_errors=True)


def _read(
    model: nn.Module | Mlp | str | os.PathLike[str],
    example: torch.Tensor | NDArray[Any] | Sequence[Any] | None,
    in_features: int | None,
) -> Mlp:
    if isinstance(model, Mlp | str | os.PathLike) and (example is not None or in_features is not None):
        raise TypeError("fused_mlp.serve: example and in_features are for torch modules")
    if isinstance(model, Mlp):
        return model
    if isinstance(model, str | os.PathLike):
        return load(model)
    from fused_mlp.models import from_torch  # noqa: PLC0415 - brings torch

    return from_torch(model, example, in_features=in_features)


def _environment(repository: str, settings: dict[str, Any]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(tuple(PREFIX + rest for rest in _DROPPED))
    }
    wanted = {**ADDRESSES, "MODEL_REPOSITORY": repository}
    wanted |= {name.upper(): str(value) for name, value in settings.items()}
    return kept | {PREFIX + name: value for name, value in wanted.items()}
