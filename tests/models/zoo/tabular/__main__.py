# SPDX-License-Identifier: Apache-2.0
"""Prints which of the tabular ONNX files are taken, and why others are not. Arguments: parts of the names to try."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.models.zoo.packages import install_packages
from tests.models.zoo.tabular.comparison import compare, entries


def main() -> int:
    if (problem := install_packages()) is not None:
        return print(problem) or 1
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    taken, made = (
        0,
        [each for each in entries() if not sys.argv[1:] or any(w in each.name for w in sys.argv[1:])],
    )
    for entry in made:
        with TemporaryDirectory() as folder:
            try:
                mlp = compare(entry, Path(folder))
                print(f"taken    {entry.name}: {mlp.spec.summary()}")
                taken += 1
            except Exception as error:  # the table says why
                text = str(error).replace(folder, "").strip().splitlines() or [""]
                print(f"refused  {entry.name}: {type(error).__name__}: {' '.join(text)[:300]}")
    print(f"{taken} of {len(made)} taken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
