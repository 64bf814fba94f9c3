# SPDX-License-Identifier: Apache-2.0
"""Errors of this package."""


class KernelError(Exception):
    """A kernel failed while running."""


class KernelUnavailable(KernelError):
    """The kernel asked for by name cannot run here. The text lists those that can."""


class KernelRefuted(KernelUnavailable):
    """There was a kernel, but it failed its check against float64."""


class KernelInputError(KernelError, ValueError):
    """The array handed to a kernel has the wrong shape or dtype."""
