# SPDX-License-Identifier: Apache-2.0
"""Names the package to install when an import fails: an extra of this one, or a shared library."""

from __future__ import annotations

import re

from fused_mlp.extras import install_command

# By top-level module: the extra that installs it; empty for what every install brings.
_EXTRAS = {
    "grpc": "",
    "google": "",
    "numpy": "",
    "pydantic": "serve",
    "prometheus_client": "serve",
    "safetensors": "serve",
    "ml_dtypes": "serve",
    "torch": "torch",
    "onnx": "onnx",
    "ray": "ray",
}
_NAMES = {"serve": "the server", "torch": "PyTorch", "onnx": "ONNX", "ray": "Ray"}
# By shared library, without its version: the Debian package.
_LIBRARIES = {
    "libnghttp2.so": "libnghttp2-14",
    "libssl.so": "libssl3",
    "libcrypto.so": "libssl3",
    "libz.so": "zlib1g",
}
_COMPILED = ("_engine", "_cpu")


def installer(module: str) -> str | None:
    """The command that installs a top-level module; None for modules that are not ours to install."""
    if module not in _EXTRAS:
        return None
    extra = _EXTRAS[module]
    return install_command(extra) if extra else "pip install fused-mlp"


def explain_import(error: ImportError, program: str) -> str | None:
    """One line that says what to install; None for other import errors."""
    module = (error.name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and (command := installer(module)):
        return f"{program} needs {_NAMES.get(_EXTRAS[module], module)}: {command}"
    if library := re.search(r"((lib[\w+-]+\.so)[.\d]*): cannot open shared object file", str(error)):
        package = _LIBRARIES.get(library[2])
        hint = f"the package {package}" if package else "the package that has it"
        return f"{program} needs the shared library {library[1]}: install {hint}"
    if re.search(rf"\b({'|'.join(_COMPILED)})\b", str(error)) and module == "fused_mlp":
        return "the compiled modules of fused-mlp are missing: install it again, with a C++ compiler (pip install .)"
    return None
