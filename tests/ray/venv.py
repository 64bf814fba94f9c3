# SPDX-License-Identifier: Apache-2.0
"""Ray in a venv of its own, which borrows ours: it is large, and only these tests need it.
`python -m tests.ray.venv` makes it if need be, and prints its interpreter."""

from __future__ import annotations

import site
import subprocess
import sys
from pathlib import Path

from deploy.cluster.packages import CACHE

PACKAGES = ("ray==2.60.0",)


def make() -> Path:
    folder = CACHE / "ray"
    done = folder / ".installed"
    python = folder / "bin" / "python"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        # Not as plain lines: our own install is editable, and so a .pth file in one of these folders.
        ours = [path for path in sys.path if Path(path).name == "site-packages"] or site.getsitepackages()
        lines = [f"import site; site.addsitedir({path!r})" for path in ours]
        (packages / "ours.pth").write_text("\n".join(lines))
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES], check=True, stdout=sys.stderr)
        done.touch()
    return python


if __name__ == "__main__":
    print(make())
