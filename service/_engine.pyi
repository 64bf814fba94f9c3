# DRAFT by the lead: what the Python front in /work/main/service/{catalog,submission,predict,metrics}.py is written
# against. Please implement this surface (improve details, keep names), then drop this comment.
import enum
from collections.abc import Buffer, Callable, Sequence
from typing import Any

class Status(enum.Enum): ...        # names as in status.hpp
class DType(enum.Enum): ...         # fp32, fp16, bf16, fp64
class Variant(enum.Enum): ...       # unspecified, fused, unfused

class InvalidInput(ValueError): ...
class RouteError(Exception):
    status: Status                   # model_not_found, version_not_found, not_ready, variant_not_loaded, override_not_allowed

def grpc_code(status: Status) -> int: ...
def now_ns() -> int: ...            # SteadyClock
def check_tensor(shape: Sequence[int], dtype: DType, byte_count: int, in_features: int, max_request_rows: int) -> int: ...
def check_values(shape: Sequence[int], value_count: int, in_features: int, max_request_rows: int) -> int: ...
def dtype_from_name(name: str) -> DType: ...      # InvalidInput
def dtype_from_proto(number: int) -> DType: ...   # InvalidInput

class HistogramSnapshot:
    bounds: list[float]              # upper bounds, seconds (or rows); the last count is +Inf
    counts: list[int]                # per bucket, not cumulative; len(bounds) + 1
    sum: float                       # seconds (or rows)

class LaneSnapshot:
    request_duration: HistogramSnapshot
    queue_duration: HistogramSnapshot
    compute_duration: HistogramSnapshot
    batch_rows: HistogramSnapshot
    codes: list[int]                 # 17, by gRPC code
    refused: dict[str, int]
    batches: dict[str, int]          # by release reason
    rows: int                        # accepted
    rows_run: int                    # through a kernel
    kernel_errors: int
    queued_rows: int
    queue_capacity_rows: int
    in_flight: int

class Lane:
    name: str
    queue_rows: int
    def record(self, grpc_code: int, duration_ns: int) -> None: ...
    def refuse_invalid(self) -> None: ...          # counts Refusal::invalid_input
    def retry_after_ms(self) -> int: ...
    def refusal_text(self, status: Status) -> str: ...
    def snapshot(self) -> LaneSnapshot: ...

class RequestSnapshot:
    codes: list[int]
    duration: HistogramSnapshot

class Completion:
    status: Status
    output: bytes                    # in the request's dtype; empty unless ok
    rows: int
    queue_ns: int
    compute_ns: int
    batch_rows: int
    strategy: str
    detail: str

class CompletionQueue:
    def fileno(self) -> int: ...
    def drain(self) -> list[tuple[Any, Completion]]: ...   # (token, completion)

class TicketHandle:
    def cancel(self) -> None: ...

class ManualClock: ...

class Engine:
    def __init__(self, *, workers: int, clock: ManualClock | None = None,
                 on_kernel_error: Callable[[str, str], None] | None = None) -> None: ...
    def add_lane(self, *, name: str, kernel: object, in_features: int, out_features: int, max_batch_rows: int,
                 max_wait_us: int, queue_rows: int) -> Lane: ...
    def remove_lane(self, lane: Lane) -> None: ...
    def submit(self, lane: Lane, data: Buffer, *, dtype: DType, rows: int, deadline_ns: int, token: object,
               queue: CompletionQueue) -> TicketHandle | Status: ...  # a Status when refused
    def begin_drain(self) -> None: ...
    def wait_idle(self, timeout_s: float) -> bool: ...
    def stop(self) -> None: ...
    def now_ns(self) -> int: ...
    def outstanding(self) -> int: ...
    def unrouted(self) -> RequestSnapshot: ...
    def record_unrouted(self, grpc_code: int, duration_ns: int) -> None: ...

class RouteEntry:
    def __init__(self, *, model: str, version: int, fused: Lane | None, unfused: Lane | None, variant: Variant,
                 allow_override: bool, in_features: int, out_features: int, max_request_rows: int,
                 ready: bool = True) -> None: ...

class Route:
    lane: Lane
    model: str
    version: int
    variant: Variant
    in_features: int
    out_features: int
    max_request_rows: int

class Router:
    def publish(self, entries: list[RouteEntry]) -> None: ...
    def resolve(self, model: str, version: int = 0, variant: Variant = ...) -> Route: ...  # raises RouteError

has_native_front: bool
