# SPDX-License-Identifier: Apache-2.0
"""The figures, by benchmark. Importing this registers them."""

from bench.docs.figures import (
    comparison,
    engine,
    environment,
    kernels,
    operations,
    overview,
    precision,
    profiling,
    rankers,
    reference,
    scaling,
    serving,
)

__all__ = [
    "comparison",
    "engine",
    "environment",
    "kernels",
    "operations",
    "overview",
    "precision",
    "profiling",
    "rankers",
    "reference",
    "scaling",
    "serving",
]
