# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp health` without typer, whose import takes longer than the rest of the command. Takes the options of the
full command, and leaves --help and mistakes to it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from fused_mlp.service.cli.failure import explain, fail

# By option: its variable, and its default.
OPTIONS: dict[str, tuple[str, str]] = {
    "--target": ("FUSED_MLP_TARGET", "127.0.0.1:8001"),
    "--timeout": ("", "10"),
    "--tls-ca": ("FUSED_MLP_TARGET_CA", ""),
    "--tls-name": ("FUSED_MLP_TARGET_NAME", ""),
    "--tls-cert": ("FUSED_MLP_TARGET_CERT", ""),
    "--tls-key": ("FUSED_MLP_TARGET_KEY", ""),
    "--token-file": ("FUSED_MLP_TARGET_TOKEN_FILE", ""),
}

_MAX_TIMEOUT_S = 1e9  # longer ones, such as infinity, are left to the full command


def check_health_quickly(arguments: list[str]) -> None:
    """Exits with 0 if the server or the model is serving, else with 1. Returns when the full command is needed."""
    values = {name: os.environ.get(variable) or default for name, (variable, default) in OPTIONS.items()}
    names: list[str] = []
    tls = False
    rest = iter(arguments)
    for argument in rest:
        option, equals, value = argument.partition("=")
        if argument == "--tls":
            tls = True
        elif option in OPTIONS:
            values[option] = value if equals else next(rest, "")
            if not values[option]:
                return
        elif argument.startswith("-"):
            return
        else:
            names.append(argument)
    try:
        timeout_s = float(values["--timeout"])
    except ValueError:
        return
    if len(names) > 1 or not 0 <= timeout_s < _MAX_TIMEOUT_S:
        return
    _check(values, tls, timeout_s, *names)


def _check(values: dict[str, str], tls: bool, timeout_s: float, model: str = "") -> None:
    from fused_mlp.service.client.channel import Tls, caller_metadata
    from fused_mlp.service.client.errors import PredictError
    from fused_mlp.service.client.health_check import check_health

    target = values["--target"]
    ca, name, cert, key = (
        values[option] or None for option in ("--tls-ca", "--tls-name", "--tls-cert", "--tls-key")
    )
    # A KeyboardInterrupt inside grpc may look like a failed call, and there is nothing to clean up.
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    try:
        secure = Tls(ca, cert, key, name) if tls or ca or name or cert or key else None
        shown = caller_metadata(Path(values["--token-file"]) if values["--token-file"] else None)
        status = check_health(target, model, timeout_s=timeout_s, tls=secure, metadata=shown)
    except PredictError as error:
        fail(explain(error))
    except (OSError, ValueError) as error:  # a TLS file that cannot be read, a certificate without its key
        fail(str(error))
    print(f"{model or target}: {status}")
    raise SystemExit(0 if status == "SERVING" else 1)
