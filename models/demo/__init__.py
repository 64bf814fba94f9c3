# SPDX-License-Identifier: Apache-2.0
"""A small repository to try things out with: `digits`, trained by `train_digits.py` beside it."""

from pathlib import Path

REPOSITORY = Path(__file__).parent
