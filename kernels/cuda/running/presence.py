# SPDX-License-Identifier: Apache-2.0
"""Whether torch sees a GPU, and whether it still answers. Imports nothing else of torch's: another thread may be
importing it."""

from __future__ import annotations

import torch

from fused_mlp.kernels.failure import report_failure

OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
CAPTURE_ERRORS = range(900, 909)  # cudaErrorStreamCaptureUnsupported and those after it


def sees_gpu() -> bool:
    return torch.cuda.is_available()


def is_lost(device: torch.device) -> bool:
    """Whether an error has made the device useless to this process until it ends: then every call fails. Asks this
    thread's stream, and only if no graph is recorded on it: to wait for the whole device would break the recordings of
    all threads, and to ask a stream the one on it."""
    try:
        with torch.cuda.device(device):
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.current_stream(device).query()
    except RuntimeError as error:
        return not _passes(error)
    return False


def _passes(error: RuntimeError) -> bool:
    """Whether it never outlasts its cause: memory that ran out, or a graph that was being recorded."""
    code = getattr(error, "error_code", None)  # of torch 2.8 and later
    if code is None:
        return isinstance(error, torch.OutOfMemoryError) or "captur" in str(error)
    return code == OUT_OF_MEMORY or code in CAPTURE_ERRORS


def report_lost(device: object, error: Exception) -> None:
    report_failure(f"{device} is lost: {str(error).strip().partition(chr(10))[0]}")
