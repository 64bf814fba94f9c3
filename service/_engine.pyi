# SPDX-License-Identifier: Apache-2.0
"""Stub of the compiled engine (service/csrc). Every method may be called from any thread; none blocks while
holding the GIL. Deadlines refer to the engine's clock (`Engine.now()`, by default `time.monotonic_ns()`)."""

import enum
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer, CapsuleType

DURATION_BOUNDS_NS: tuple[int, ...]
"""Upper bounds of the duration histograms; one more bucket, +Inf, follows."""
LATENCY_BOUNDS_NS: tuple[int, ...]
"""Upper bounds, exclusive, of Lane.latencies; one more bucket follows."""
ROW_BOUNDS: tuple[int, ...]
DIFFERENCE_BOUNDS: tuple[float, ...]

def record_metrics(on: bool) -> None:
    """Switch the recording of metrics on (the default) or off for the whole process."""

def release_free_memory() -> None:
    """Return memory that was freed to the system."""

def keep_little_free_memory() -> None:
    """Have the allocator return large parts of it at once, for the whole process."""

def allocated_bytes() -> int:
    """Bytes in use of the memory that the allocator keeps; 0: it does not say."""

def lower_thread_priority() -> None:
    """Of the calling thread, for good: it runs when others leave it time. Threads that it starts have the same."""

def use_cores(count: int) -> None:
    """How many cores this process may use; without it, as many as the machine has."""

class Status(enum.Enum):
    ok = 0
    invalid_input = 1
    model_not_found = 2
    version_not_found = 3
    not_ready = 4
    not_loaded = 5
    variant_not_loaded = 6
    override_not_allowed = 7
    overloaded = 8
    deadline_expired = 9
    cancelled = 10
    shutting_down = 11
    kernel_error = 12
    deadline_too_near = 13

def grpc_code(status: Status) -> int: ...
def quote_name(name: str) -> str:
    """Make a name from a request safe to send back: quoted, cut, without control characters."""

class Refused(Exception):
    """A request was not accepted. str() is one line that may be sent to the client; `lane` is where to count it, if
    that is known."""

    status: Status
    retry_after_ms: int
    lane: Lane | None
    version: int  # the one to load, after not_loaded; 0: none

class ManualClock:
    """A clock for tests: stands still until advanced."""

    def __init__(self, start_ns: int = 1_000_000_000) -> None: ...
    def advance(self, by_ns: int) -> None: ...

class DType(enum.Enum):
    fp32 = 0
    fp16 = 1
    bf16 = 2
    fp64 = 3

class HistogramSnapshot:
    @property
    def buckets(self) -> list[int]:
        """Not cumulative; the last is +Inf."""
    @property
    def count(self) -> int: ...
    @property
    def sum(self) -> int:
        """In ns for durations."""

class RequestSnapshot:
    @property
    def codes(self) -> dict[int, int]:
        """Requests by gRPC code, without the codes that never occurred."""
    @property
    def duration(self) -> HistogramSnapshot: ...
    @property
    def failed_ns(self) -> int:
        """The part of `duration` with a code other than OK."""

class LaneSnapshot:
    @property
    def requests(self) -> RequestSnapshot: ...
    @property
    def queue_duration(self) -> HistogramSnapshot: ...
    @property
    def compute_duration(self) -> HistogramSnapshot: ...
    @property
    def batch_rows(self) -> HistogramSnapshot: ...
    @property
    def batches(self) -> dict[str, int]:
        """By release reason: full, idle, wait."""
    @property
    def refused(self) -> dict[str, int]:
        """By reason: invalid_input, queue_full, deadline, cancelled, draining."""
    @property
    def gather_ns(self) -> int:
        """From the queue to the kernel call, over all requests: each is charged the whole of its batch."""
    @property
    def compute_ns(self) -> int:
        """The kernel call, over all requests."""
    @property
    def rows(self) -> int: ...
    @property
    def wasted_rows(self) -> int: ...
    @property
    def kernel_errors(self) -> int: ...
    @property
    def wasted_ns(self) -> int: ...
    @property
    def queued_long(self) -> int: ...
    @property
    def in_flight(self) -> int: ...

class ShadowSnapshot:
    @property
    def batches(self) -> dict[str, int]:
        """Sampled batches by outcome: compared, skipped, failed."""
    @property
    def rows(self) -> int: ...
    @property
    def disputed(self) -> int:
        """Batches handed to `on_dispute`."""
    @property
    def verdicts(self) -> dict[str, int]:
        """By name, zeros included."""
    @property
    def fused(self) -> HistogramSnapshot: ...
    @property
    def unfused(self) -> HistogramSnapshot: ...
    @property
    def differences(self) -> HistogramSnapshot:
        """Between versions: rows by their relative difference, of which DIFFERENCE_BOUNDS has the bounds; the sum is in
        millionths."""
    @property
    def top1_changes(self) -> int:
        """Between versions: rows with another largest output."""
    @property
    def max_absolute(self) -> float: ...
    @property
    def max_relative(self) -> float: ...

class RequestMetrics:
    """Requests by gRPC code."""

    def snapshot(self) -> RequestSnapshot: ...

class LaneMetrics:
    """What a lane, and those after it that were made with it, have counted."""

    @property
    def used(self) -> bool:
        """Whether it has counted anything."""
    def totals(self, faults: int) -> tuple[int, int, int]:
        """Requests, those whose gRPC code is a bit of `faults`, and nanoseconds in the kernel."""
    def snapshot(self) -> LaneSnapshot: ...

class ShadowMetrics:
    """What a shadow, and those after it that were made with it, have counted."""

    def snapshot(self) -> ShadowSnapshot: ...

def histogram_text(
    name: str,
    series: list[tuple[str, HistogramSnapshot]],
    buckets: Sequence[tuple[int, str]],
    decimals: int,
    parts: Sequence[str],
    exemplars: bool = False,
) -> bytes:
    """Histograms as lines for Prometheus, made without the GIL. `series`: labels and values. `buckets`: which, and
    their bounds. Sums are divided by 10 to the power of `decimals`. `parts`: of _bucket, _sum, _count. `exemplars`: as
    OpenMetrics writes them."""

class Ticket:
    def cancel(self) -> None:
        """Cancel the request. Safe at any time; a result still arrives."""

class TicketResult:
    """How a ticket ended."""

    @property
    def token(self) -> Any: ...
    @property
    def status(self) -> Status: ...
    @property
    def data(self) -> bytes | None:
        """(rows, out_features) in the dtype of the request; None unless ok."""
    @property
    def rows(self) -> int: ...
    @property
    def batch_rows(self) -> int: ...
    @property
    def queue_ns(self) -> int: ...
    @property
    def compute_ns(self) -> int: ...
    @property
    def strategy(self) -> str: ...
    @property
    def detail(self) -> str:
        """If not ok: one line that may be sent to the client."""

class CompletionQueue:
    """Delivers finished tickets to one event loop: loop.add_reader(queue.fileno(), on_readable)."""

    def __init__(self) -> None: ...
    def fileno(self) -> int: ...
    def drain(self) -> list[TicketResult]:
        """The results since the last call."""

class Lane:
    """One kernel, its bounded queue and its metrics. Created by Engine.add_lane."""

    @property
    def name(self) -> str: ...
    @property
    def queue_rows(self) -> int: ...
    @property
    def weight(self) -> float:
        """The share of its model, all its lanes together, relative to other models that have work."""
    @weight.setter
    def weight(self, weight: float) -> None: ...
    def record(self, grpc_code: int, duration_ns: int) -> None:
        """Count one finished request."""
    def add_exemplars(self, trace: TraceContext, duration_ns: int, queue_ns: int, compute_ns: int) -> None:
        """Of a request that a tracing system knows. A negative time in the queue: it was in no batch."""
    def refuse_invalid(self) -> None:
        """Count a request with invalid input. The engine counts all other refusals."""
    @property
    def used(self) -> bool:
        """Whether it has counted anything."""
    @property
    def last_used_ns(self) -> int:
        """When its last batch ended, on the monotonic clock; 0: it has run none."""
    @property
    def in_flight(self) -> int:
        """Requests accepted and not yet complete."""
    @property
    def queued_rows(self) -> int:
        """Rows that wait."""
    def latencies(self) -> list[int]:
        """Answered requests by duration, since the first call: bucket i holds those from LATENCY_BOUNDS_NS[i - 1] up to
        LATENCY_BOUNDS_NS[i], at a resolution of 1/32."""
    def snapshot(self) -> LaneSnapshot: ...

class Verdict(enum.Enum):
    """Which variant is further from float64 than rounding explains. `unfused_not_finite`: it overflowed, which its
    dtype explains, where fused did not. `within_bound`: rounding explains both. `int8_cost`: so it does, but
    that of int8 rows costs more than was allowed for. `not_judged`: the referee was busy."""

    fused_wrong = 0
    unfused_wrong = 1
    both_wrong = 2
    unfused_not_finite = 3
    within_bound = 4
    int8_cost = 5
    not_judged = 6

class Shadow:
    """Two lanes, compared on a share of their batches. Created by Engine.add_shadow."""

    @property
    def name(self) -> str: ...
    @property
    def share(self) -> float: ...
    @property
    def tolerance(self) -> float: ...
    def record(self, verdict: Verdict) -> bool:
        """Count a verdict. True for the first of its kind since restart()."""
    def restart(self) -> None: ...
    @property
    def epoch(self) -> int:
        """How many times restart() was called."""
    def snapshot(self) -> ShadowSnapshot: ...

# (shadow, its `epoch` when the batch was answered, largest absolute difference, largest relative difference,
# (x, fused's outputs, unfused's outputs)): the last are float32, of the first few rows that differ.
OnDispute = Callable[[Shadow, int, float, float, tuple[bytes, bytes, bytes]], object]

class Engine:
    def __init__(self, workers: int = 1, clock: ManualClock | None = None) -> None: ...
    def add_lane(
        self,
        *,
        kernel: CapsuleType | Callable[[NDArray[np.float32], NDArray[np.float32]], str],
        in_features: int,
        out_features: int,
        name: str = "",
        max_batch_rows: int = 64,
        max_wait_us: int = 0,
        queue_rows: int = 4096,
        target_queue_ms: int = 0,
        one_core: bool = False,
        model: str = "",
        metrics: LaneMetrics | None = None,
    ) -> Lane:
        """`kernel` is the capsule of `Kernel.capsule()`, run without the GIL, or `Kernel.run`, called once per
        batch with the GIL. A capsule is run a few times to learn how long batches take. `one_core`: a call of the
        kernel uses one core, so that a large batch is shared between idle workers. Lanes of one `model` share its
        weight and its time; "" is a model of its own. `metrics`: to go on counting with."""
    def remove_lane(self, lane: Lane) -> None:
        """Run what is queued; the last reference to the lane frees its kernel. Publish the route that replaces
        it first: then no request is refused."""
    def add_shadow(
        self,
        name: str,
        fused: Lane,
        unfused: Lane,
        cpu_time: bool = True,
        versions: bool = False,
        metrics: ShadowMetrics | None = None,
    ) -> Shadow:
        """Pair two lanes for comparison; they may have traffic already. `versions`: arms of two versions, of which
        `fused` answers and `unfused` shadows it. `cpu_time`: measure kernels by the CPU time of their thread; False,
        for kernels that run on a GPU: by elapsed time. `metrics`: to go on counting with."""
    def set_shadow(self, shadow: Shadow, share: float, tolerance: float) -> None:
        """Run that share of the batches again on the other variant, after the responses; a relative difference
        above the tolerance is disputed. The shadow's thread works for at most the largest of all shares of the
        time."""
    def submit(
        self,
        lane: Lane,
        data: Buffer,
        dtype: DType,
        rows: int,
        deadline_ns: int,
        token: object,
        queue: CompletionQueue,
        trace_id: int = 0,
        caller: Caller | None = None,
    ) -> Ticket:
        """Queue validated rows; the result arrives in `queue` with `token`. `deadline_ns` 0: none. Raises Refused
        (overloaded, deadline_expired, deadline_too_near, shutting_down); then no result arrives."""
    def begin_drain(self) -> None:
        """Refuse new requests as shutting_down; queued ones no longer wait for batch mates."""
    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until every accepted ticket is complete; False on timeout."""
    def stop(self) -> None:
        """Complete queued tickets as shutting_down, wait for running batches, join the workers."""
    def now(self) -> int: ...
    def record_unrouted(self, grpc_code: int, duration_ns: int) -> None:
        """Count a request that named no model we serve."""
    def unrouted(self) -> RequestSnapshot:
        """The requests counted by record_unrouted."""
    @property
    def on_kernel_error(self) -> Callable[[str, str], object] | None:
        """Called as (lane name, traceback or message) on the thread that ran the batch, after its tickets are
        complete; at most ten times a second."""
    @on_kernel_error.setter
    def on_kernel_error(self, callable: Callable[[str, str], object] | None) -> None: ...  # noqa: A002
    @property
    def on_dispute(self) -> OnDispute | None:
        """Called on the shadow's thread for every batch with rows that differ by more than the tolerance, or where only
        unfused is not finite."""
    @on_dispute.setter
    def on_dispute(self, callable: OnDispute | None) -> None: ...  # noqa: A002

class Variant(enum.Enum):
    unspecified = 0
    fused = 1
    unfused = 2

class InputKind(enum.Enum):
    """What an input takes."""

    floats = ...
    whole = ...
    strings = ...

class RuleOp(enum.Enum):
    """What a rule does to whole numbers."""

    add = ...
    divide = ...
    modulo = ...
    remainder = ...
    clip = ...
    replace = ...
    multiply = ...

class Vocabulary:
    """The words, or numbers, that an input knows, by their places. `unknown`: the place of all others; -1: they are
    refused."""

    def __init__(self, known: Sequence[str | int], unknown: int = -1) -> None: ...

class InputField:
    """One reading of an input. `size`: of the table that its ids pick from; 0: floats. `positions`: of the values that
    it reads; none: all."""

    def __init__(
        self, size: int, rules: Sequence[tuple[RuleOp, Sequence[int]]], positions: Sequence[int] = ()
    ) -> None: ...

class NamedInput:
    """What callers send under a name: models/program/inputs.py."""

    def __init__(
        self,
        name: str,
        kind: InputKind,
        shape: Sequence[int],
        ragged: bool,
        vocabulary: Vocabulary | None,
        fields: Sequence[InputField],
    ) -> None: ...

class InputLayout:
    """The named inputs of a model, and the records that they become."""

    def __init__(self, inputs: Sequence[NamedInput]) -> None: ...
    @property
    def words(self) -> int:
        """Of a record."""
    def refused(self) -> list[tuple[str, int]]:
        """By input, the requests that were refused for an id or a word of it."""

class RouteEntry:
    """One version of one model, and the lanes that serve it. `split`: the share of requests without a variant that
    go to the other variant. `withdrawn`: unfused answers all requests, because fused gave wrong results.
    `outputs`: name, width and whether to squeeze, in the order of columns; none: one, `output`. `input_shape`: of a
    row, as the model itself takes it; none: [in_features]. `on_demand`: not loaded; requests for it are refused as
    not_loaded, which a front takes for "have it loaded and ask again". `no_room`: others fill the memory; requests for
    it are refused, but no other version takes its place as the default. `unserved`: of the model,
    see Router.record_unserved. `layout`: of named inputs; none: one tensor of floats."""

    def __init__(
        self,
        *,
        model: str,
        version: int,
        fused: Lane | None = None,
        unfused: Lane | None = None,
        variant: Variant = Variant.fused,
        allow_override: bool = False,
        ready: bool = True,
        loading: bool = False,
        on_demand: bool = False,
        no_room: bool = False,
        in_features: int,
        out_features: int,
        max_request_rows: int = 4096,
        split: float = 0.0,
        withdrawn: bool = False,
        outputs: Sequence[tuple[str, int, bool]] = (),
        input_shape: Sequence[int] = (),
        unserved: RequestMetrics | None = None,
        layout: InputLayout | None = None,
    ) -> None: ...

class RoutePlan:
    """What the policy of a model says of its versions. `default_version` 0: the highest that can answer. `arms`, beside
    the default: version, variant (unspecified: that of its version), share of the requests that name no version."""

    def __init__(
        self,
        *,
        model: str,
        default_version: int = 0,
        arms: Sequence[tuple[int, Variant, float]] = (),
        labels: Sequence[tuple[str, int]] = (),
    ) -> None: ...

class Route:
    """The lane that answers a request, and its limits. Keeps the lane alive."""

    @property
    def model(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def variant(self) -> Variant: ...
    @property
    def lane(self) -> Lane: ...
    @property
    def in_features(self) -> int: ...
    @property
    def out_features(self) -> int: ...
    @property
    def max_request_rows(self) -> int: ...

class Action(enum.Enum):
    """What a caller may do."""

    predict = ...
    describe = ...
    admin = ...
    metrics = ...

class CallerRules:
    def __init__(
        self,
        *,
        name: str,
        actions: Sequence[Action],
        models: Sequence[str],
        expires_s: int = 0,
        requests_per_s: float = 0.0,
        rows_per_s: float = 0.0,
        max_in_flight: int = 0,
        weight: float = 1.0,
        digest: bytes = b"",
        certificates: Sequence[str] = (),
        subjects: Sequence[str] = (),
    ) -> None:
        """`models` and `subjects` are patterns with * and ?; `digest`: SHA-256 of the key; limits of 0: none."""

class CallerUsage(TypedDict):
    requests: int
    rows: int
    refused: dict[str, int]

class Caller:
    """One caller that the server knows."""

    @property
    def name(self) -> str: ...
    def allows(self, action: Action, model: str = "") -> bool:
        """Without a model: for all models."""
    def admit(self, rows: int) -> None:
        """Take a request off the quotas, and count it. Raises Refused."""
    def release(self) -> None:
        """A request that was admitted has ended."""
    def count_denied(self) -> None: ...
    def usage(self) -> CallerUsage: ...

class Identity:
    """Whose call it is; without a caller, `code` and `text` say why not."""

    @property
    def caller(self) -> Caller | None: ...
    @property
    def code(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def retry_after_ms(self) -> int: ...

class Callers:
    """All callers that the server knows."""

    def __init__(self) -> None: ...
    def publish(
        self,
        rules: Sequence[CallerRules],
        proxies: Sequence[tuple[bytes, int]],
        proxy_names: Sequence[str],
    ) -> None:
        """Replace all of them in one step. What callers have used is kept, by name."""
    def identify(
        self,
        *,
        key: str | None,
        subject: str | None,
        certificate_names: Sequence[str],
        peer_address: str,
    ) -> Identity: ...
    def all(self) -> list[Caller]: ...

class AllowedHosts:
    """Which Host headers a port answers to."""

    def __init__(self, names: Sequence[str]) -> None: ...
    def allows(self, host: str) -> bool: ...

class Router:
    """Maps the arms of models to lanes, and requests to arms."""

    def __init__(self) -> None: ...
    def publish(self, entries: Sequence[RouteEntry]) -> None:
        """Replace all routes in one step."""
    def update(
        self, models: Sequence[str], entries: Sequence[RouteEntry], plans: Sequence[RoutePlan] = ()
    ) -> None:
        """Replace the routes of these models in one step, at the cost of those alone; one without entries is no longer
        served."""
    def record_unserved(self, model: str, grpc_code: int, duration_ns: int) -> bool:
        """Count a request that reached no lane of its model. False: no such model is served."""
    def resolve(
        self,
        model: str,
        version: int = 0,
        variant: Variant = Variant.unspecified,
        key: str = "",
        request_id: str = "",
        label: str = "",
    ) -> Route:
        """A split is decided by the hash of `key`, else of `request_id`; without both, by an exact share of the
        requests. Raises Refused."""

def hash_key(key: str) -> int:
    """XXH64 of a key's UTF-8 bytes: the key goes to the other variant if this is below split * 2**64."""

# The codec (service/csrc/codec): messages of both prediction APIs, as both fronts read and write them.

class PredictInput:
    """A decoded request. After an `error` only the ids may be read."""

    @property
    def error(self) -> str:
        """What is wrong with the message, fit to be sent; empty: nothing."""
    @property
    def request_id(self) -> str: ...
    @property
    def short_id(self) -> str:
        """The id, cut to 80 bytes for logs and error texts."""
    @property
    def model(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def variant(self) -> Variant: ...
    @property
    def label(self) -> str: ...
    def complete_arm(self, arm: str | None, variant: str | None) -> None:
        """What the metadata of its call says where the message says nothing. Raises Refused."""
    @property
    def outputs(self) -> list[str]:
        """The outputs that it names."""
    @property
    def inputs(self) -> list[str]:
        """The tensors that it names, unless it has one of floats called `input`: then shape, dtype and data are its
        own."""
    @property
    def all_outputs(self) -> bool:
        """It asks for all of them; otherwise no name means the first."""
    @property
    def shape(self) -> list[int]:
        """The first 10 dimensions: no valid shape has more than 9."""
    @property
    def dtype(self) -> DType: ...
    @property
    def data(self) -> bytes:
        """Little-endian elements."""
    @property
    def typed(self) -> bool:
        """They came in a repeated field of numbers, not as raw bytes."""
    def check_rows(self, route: Route) -> int:
        """The rows. Raises Refused when shapes, dtypes and bytes do not fit each other or the model. Named inputs
        become records, which `data` holds from then on."""

class Codec:
    """Reads and writes the messages of one prediction RPC."""

    def decode(self, message: bytes) -> PredictInput: ...
    def encode(self, request: PredictInput, route: Route, result: TicketResult) -> bytes:
        """The response of a request that was computed."""
    def encode_error(self, request_id: str, code: int, text: str) -> bytes:
        """The response of one request on a stream that failed."""

PREDICT_CODEC: Codec
"""fused_mlp.v1: PredictRequest, PredictResponse."""
INFER_CODEC: Codec
"""inference: ModelInferRequest, ModelInferResponse."""
INFER_STREAM_CODEC: Codec
"""inference: ModelInferRequest, ModelStreamInferResponse."""

class TracePhase(enum.Enum):
    decode = 0
    queue = 1
    gather = 2
    kernel = 3
    scatter = 4
    encode = 5

def start_trace(spans_per_thread: int) -> bool:
    """Trace all requests read from now on, in every engine of the process. False if a trace is running."""

class TraceContext:
    """The header traceparent of a request; a broken one is ignored."""

    def __init__(self, header: str = "") -> None: ...
    @property
    def sampled(self) -> bool: ...
    @property
    def trace_id(self) -> str:
        """32 hex digits, or nothing."""

class Trace:
    @property
    def threads(self) -> dict[int, str]:
        """Names by thread id."""
    @property
    def dropped(self) -> int:
        """Spans that did not fit."""
    def spans(self, start: int, count: int) -> list[tuple[str, int, int, int, int, int, str, str]]:
        """Some of them: (phase, thread, request, rows, start_ns, end_ns, lane, trace_id). Request 0 is a whole batch;
        times are on the engine's clock. Holds the GIL while it makes them; empty past the end."""

def stop_trace() -> Trace: ...
def tracing() -> bool: ...
def next_trace_id() -> int: ...
def record_span(
    phase: TracePhase,
    request: int,
    rows: int,
    start_ns: int,
    end_ns: int,
    lane: str,
    caller: TraceContext = ...,
) -> None: ...

class RequestSpan:
    """A sampled request, from its arrival to its answer. Times are on the engine's clock, 0 for what it did not
    reach."""

    @property
    def trace_id(self) -> tuple[int, int]:
        """The upper and the lower half."""
    @property
    def parent_id(self) -> int:
        """The caller's span; 0: there is none."""
    @property
    def context(self) -> TraceContext:
        """For what is below it."""
    @property
    def id(self) -> int: ...
    @property
    def rpc(self) -> str:
        """package.Service/Method, or the verb and the route of REST."""
    @property
    def path(self) -> str:
        """REST: as it was asked for, cut; empty for gRPC."""
    @property
    def lane(self) -> str: ...
    @property
    def model(self) -> str:
        """Where there is no lane: the name that was asked for, cut."""
    @property
    def strategy(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def batch_start(self) -> int: ...
    @property
    def batch_end(self) -> int: ...
    @property
    def compute_start(self) -> int: ...
    @property
    def compute_end(self) -> int: ...
    @property
    def batch(self) -> int:
        """The same for all requests of a batch."""
    @property
    def rows(self) -> int: ...
    @property
    def batch_rows(self) -> int: ...
    @property
    def code(self) -> int: ...
    def add(self, result: TicketResult, now_ns: int) -> None: ...
    def finish(self, code: int, lane: str, model: str, now_ns: int) -> None: ...

def sampling() -> bool: ...
def start_sampling(ratio: float, parents_decide: bool, capacity: int) -> None: ...
def stop_sampling() -> None: ...
def sample_request(caller: TraceContext, rpc: str, start_ns: int, address: int = 0) -> RequestSpan | None: ...
def take_request_spans() -> list[RequestSpan]:
    """Those that ended since the last call."""

def dropped_request_spans() -> int:
    """How many found no room since the start."""
