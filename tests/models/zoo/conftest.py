# SPDX-License-Identifier: Apache-2.0
"""torch.export writes a structured log of all it does where a handler listens, and pytest's does."""

from __future__ import annotations

import logging

logging.getLogger("torch.__trace").setLevel(logging.WARNING)
