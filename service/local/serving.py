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
from fused_mlp.service.local.child_server import ChildServer, environment
from fused_mlp.service.settings.settings import Settings

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from fused_mlp.service.client.tensors import ArrayLike

# Variables of the caller that are for other servers, or would lock out this server's only client.
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

    For notebooks and tests. The server ends with `stop()`, with the object, with the `with` block that it is used in,
    or with this process, whatever ends that.

    Args:
        model: A torch module, an `Mlp`, or a file or folder that `fused_mlp.load` reads.
        name: The model's name for clients.
        example: Rows as a torch module takes them, as for `fused_mlp.from_torch`.
        in_features: The width of a row of a torch module, in place of an example.
        settings: Settings of `fused-mlp serve` with their names in Python: `threads=1`, `variant="unfused"`.

    Returns:
        The server, with a client that is connected to it.

    Raises:
        TypeError: There is no such setting; the text names the closest.
        ModelLoadError: The model cannot be represented or read.

    Examples:
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 3))
        >>> with fused_mlp.serve(net) as server:
        ...     server.predict(np.zeros((5, 8), np.float32)).output.shape
        (5, 3)
    """
    for setting in settings.keys() - Settings.model_fields.keys():
        close = get_close_matches(setting, Settings.model_fields, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ", as `fused-mlp serve --help` lists them"
        raise TypeError(f"fused_mlp.serve: unknown setting {setting!r}{hint}")
    mlp = _read(model, example, in_features)
    folder = tempfile.mkdtemp(prefix="fused-mlp-")
    try:
        save(mlp, Path(folder) / name / "1")
        return LocalServer(name, mlp, folder, settings)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


class LocalServer:
    """A server in a child process, started by `fused_mlp.serve`.

    Attributes:
        name: The model's name for clients.
        mlp: The model that it serves.
        address: HOST:PORT of gRPC, for any client.
        url: The live page, for a browser.
        pid: Of the child process.
        client: A `Client` that is connected to it.
    """

    def __init__(self, name: str, mlp: Mlp, folder: str, settings: dict[str, Any]) -> None:
        child = ChildServer(environment({"model_repository": folder, **settings}, _DROPPED), folder)
        self.name = name
        self.mlp = mlp
        self.address = child.target
        self.url = f"{child.metrics_url}/"
        self.pid = child.pid
        self.client = Client(child.target)
        self._end = weakref.finalize(self, _end, self.client, child, folder)  # also when the interpreter ends

    def predict(self, x: ArrayLike, **options: Any) -> Prediction:
        """Call the model: `client.predict(name, x)`, with the options of `Client.predict`."""
        return self.client.predict(self.name, x, **options)

    def stop(self) -> None:
        """End the server. Its object can be kept; a second call does nothing."""
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
