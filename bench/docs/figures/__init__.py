# SPDX-License-Identifier: Apache-2.0
"""The figures, by benchmark. Importing this registers them."""

from bench.docs.figures import (
    environment,
    kernels,
    operations,
    overview,
    precision,
    profiling,
    scaling,
    serving,
)

__all__ = ["environment", "kernels", "operations", "overview", "precision", "profiling", "scaling", "serving"]
