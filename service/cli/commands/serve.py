# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp serve`: its options are generated from the settings. Values go to pydantic as they were typed, so that
the command line and the environment are checked by the same rules."""

from __future__ import annotations

import inspect
import os
import re
from importlib.util import find_spec
from typing import Annotated

import typer

# Set before the next lines import numpy. A server multiplies with it only to check kernels, several at a time: its own
# threads would wait for each other (15 ms for a product of 0.1 ms on a busy machine).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from fused_mlp.service.cli.failure import fail
from fused_mlp.service.settings.docs import SettingDoc, setting_docs
from fused_mlp.service.settings.environment import load_settings
from fused_mlp.service.settings.settings import SettingsError


def command(**given: str | None) -> None:
    """Serve the models of a repository until SIGTERM or Ctrl-C.

    Each option is also an environment variable, named in brackets with its default; the option wins."""
    try:
        settings = load_settings(**given)
    except SettingsError as error:
        fail(_as_typed(str(error), given))
    # The first scrape imports it; a server without it must say so at its start.
    if find_spec("prometheus_client") is None:
        raise ModuleNotFoundError("No module named 'prometheus_client'", name="prometheus_client")
    # Imported here because it is slow, and --help or a mistyped option does not need it.
    from fused_mlp.kernels import KernelError
    from fused_mlp.models import ModelLoadError
    from fused_mlp.service.process import serve

    try:
        raise typer.Exit(serve(settings))
    except (SettingsError, ModelLoadError, KernelError) as error:
        fail(str(error))


def _as_typed(message: str, given: dict[str, str | None]) -> str:
    """Errors name variables; a value given as an option is named by its option."""
    for doc in setting_docs():
        if given.get(doc.name) is not None:
            message = re.sub(rf"\b{doc.env}((?:\.\w+)*)=", rf"{doc.option}\1 ", message)
    return message


def _parameter(doc: SettingDoc) -> inspect.Parameter:
    default = f" = {doc.default}" if doc.default else ""
    option = typer.Option(
        doc.option,
        help=f"{_sentence(doc.description)} [dim]\\[{doc.env}{default}][/dim]",
        metavar=doc.values,
        show_default=False,  # the default is shown with the variable
        rich_help_panel=doc.group,
    )
    return inspect.Parameter(
        doc.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


def _sentence(text: str) -> str:
    """With a capital letter, unless the first word contains capitals (gRPC)."""
    return text[:1].upper() + text[1:] if text.split(maxsplit=1)[0].islower() else text


_parameters = [*map(_parameter, setting_docs())]
command.__signature__ = inspect.Signature(_parameters)  # type: ignore[attr-defined]
command.__annotations__ = {parameter.name: parameter.annotation for parameter in _parameters}
