# SPDX-License-Identifier: Apache-2.0
"""The command that adds an extra to this installation."""

from __future__ import annotations

from pathlib import Path

# A wheel has no Makefile beside the package. What runs in a checkout was installed by its Makefile.
IN_CHECKOUT = (Path(__file__).resolve().parents[1] / "Makefile").is_file()


def install_command(extra: str) -> str:
    # Other extras of a checkout come by pip too, but pip would choose a torch of several gigabytes.
    if extra == "torch" and IN_CHECKOUT:
        return "make install"
    return f"pip install 'fused-mlp[{extra}]'"
