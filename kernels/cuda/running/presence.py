"""Whether torch sees a GPU, which one a thread's calls go to, and whether it still answers."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from fused_mlp.kernels.errors import KernelUnavailable
from fused_mlp.kernels.failure import report_failure

OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
CAPTURE_ERRORS = range(900, 909)  # cudaErrorStreamCaptureUnsupported and those after it


def sees_gpu() -> bool:
    return torch.cuda.is_available()


def current_device(index: int) -> AbstractContextManager[object]:
    """Within it, `cuda` is that device."""
    count = torch.cuda.device_count()
    if index >= count:
        found = f"cuda:0 to cuda:{count - 1}" if count > 1 else ("cuda:0" if count else "no CUDA device")
        raise KernelUnavailable(f"device: got 'cuda:{index}', torch sees {found}")
    return torch.cuda.device(index)


def free_bytes() -> list[int]:
    """Of each GPU."""
    return [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]


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
