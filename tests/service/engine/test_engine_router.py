# SPDX-License-Identifier: Apache-2.0
"""Routes through the Python module, and a kernel capsule that needs no GIL."""

from __future__ import annotations

import ctypes
import select
import threading

import numpy as np
import pytest

from fused_mlp.service import _engine
from fused_mlp.service._engine import CompletionQueue, DType, Engine, RouteEntry, Router, Status, Variant


def run(x: np.ndarray, y: np.ndarray) -> str:
    y[:] = x
    return "copy"


@pytest.fixture
def engine():
    engine = Engine(workers=1)
    yield engine
    engine.stop()


@pytest.fixture
def router(engine):
    lanes = [engine.add_lane(kernel=run, in_features=2, out_features=2, name=n) for n in "abc"]
    router = Router()
    shape = {"in_features": 2, "out_features": 2}
    router.publish([
        RouteEntry(model="m", version=1, fused=lanes[0], unfused=lanes[1], allow_override=True, **shape),
        RouteEntry(model="m", version=2, fused=lanes[2], max_request_rows=7, **shape),
        RouteEntry(model="loading", version=1, ready=False, **shape),
    ])  # fmt: skip
    return router


def test_route_names_its_lane_and_limits(router):
    route = router.resolve("m")
    assert (route.model, route.version, route.variant) == ("m", 2, Variant.fused)
    assert (route.lane.name, route.max_request_rows, route.in_features) == ("c", 7, 2)
    assert router.resolve("m", 1, Variant.unfused).lane.name == "b"


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        (("unknown",), Status.model_not_found, 5),
        (("m", 9), Status.version_not_found, 5),
        (("loading",), Status.not_ready, 14),
        (("m", 2, Variant.unfused), Status.override_not_allowed, 7),
    ],
)
def test_route_that_does_not_exist_is_refused_with_its_status(router, query, status, code):
    with pytest.raises(_engine.Refused) as refused:
        router.resolve(*query)
    assert refused.value.status is status
    assert _engine.grpc_code(status) == code


def test_route_keeps_its_lane_alive_over_a_swap(engine, router):
    route = router.resolve("m")
    router.publish([])
    engine.remove_lane(route.lane)
    queue = CompletionQueue()
    engine.submit(route.lane, np.ones((1, 2), np.float32), DType.fp32, 1, 0, None, queue)
    assert engine.wait_idle(30)
    assert queue.drain()[0].status is Status.ok


def test_name_of_a_model_is_cut_when_sent_back(router):
    with pytest.raises(_engine.Refused) as refused:
        router.resolve("é" * 5000)
    assert len(str(refused.value)) < 100
    with pytest.raises(_engine.Refused):
        router.resolve("a\0b")


RUN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_float), ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_float), ctypes.c_uint, ctypes.c_char_p, ctypes.c_size_t,
)  # fmt: skip
# A ctypes callback cannot return a string: it returns the address of a static one.
STRATEGY = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
STRATEGY_NAME = ctypes.create_string_buffer(b"capsule")


class KernelApi(ctypes.Structure):
    """kernels/csrc/kernel_api.h in ctypes: the engine accepts any kernel that implements it."""

    _fields_ = (
        ("abi", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("ctx", ctypes.c_void_p),
        ("in_features", ctypes.c_size_t),
        ("out_features", ctypes.c_size_t),
        ("run", RUN),
        ("strategy", STRATEGY),
        ("max_at_once", ctypes.c_uint32),
        ("steps", ctypes.c_void_p),
        ("run_groups", ctypes.c_void_p),
    )


NAME = b"fused_mlp.kernel"
KEPT: list[KernelApi] = []


def capsule_of(api: KernelApi, name: bytes = NAME) -> object:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule = new(ctypes.addressof(api), name, None)
    KEPT.append(api)  # kept alive, as by a real kernel's capsule
    return capsule


def make_api(code: int, abi: int = 3, flags: int = 0) -> KernelApi:
    def run(ctx, x, count, y, busy, error, error_size):
        for i in range(count * 2):
            y[i] = x[i] + 1
        return code

    return KernelApi(
        abi, flags, None, 2, 2, RUN(run), STRATEGY(lambda ctx, count: ctypes.addressof(STRATEGY_NAME))
    )


@pytest.mark.parametrize(("code", "status"), [(0, Status.ok), (3, Status.kernel_error)])
def test_capsule_kernel_runs_and_its_return_code_decides_the_status(engine, code, status):
    api, queue, reports = make_api(code), CompletionQueue(), []
    engine.on_kernel_error = lambda name, text: reports.append(text)
    lane = engine.add_lane(kernel=capsule_of(api), in_features=2, out_features=2)
    Engine(workers=0).add_lane(kernel=capsule_of(api), in_features=2, out_features=2)  # runs without the GIL
    engine.submit(lane, np.ones((1, 2), np.float32), DType.fp32, 1, 0, None, queue)
    assert select.select([queue.fileno()], [], [], 30)[0]
    (done,) = queue.drain()
    assert done.status is status
    assert engine.wait_idle(30)
    if status is Status.ok:
        assert done.strategy == "capsule"
        np.testing.assert_array_equal(np.frombuffer(done.data, np.float32), [2, 2])
    else:
        assert "code 3" in reports[0]


def test_kernel_that_waits_for_a_device_needs_a_worker(engine):
    waits = capsule_of(make_api(0, flags=1))
    engine.add_lane(kernel=waits, in_features=2, out_features=2)
    with pytest.raises(ValueError, match="waits for a GPU needs an engine with at least 1 worker"):
        Engine(workers=0).add_lane(kernel=waits, in_features=2, out_features=2)


def test_kernel_is_told_how_many_other_threads_are_busy():
    engine, queue = Engine(workers=2), CompletionQueue()
    busy_threads: list[int] = []
    both_run = threading.Barrier(2, timeout=30)

    def run(ctx, x, count, y, busy, error, error_size):
        if busy == 2**32 - 1:
            return 0  # measured by add_lane, alone
        both_run.wait()  # so that the first cannot finish before the second begins
        busy_threads.append(busy)
        both_run.wait()
        return 0

    api = KernelApi(3, 0, None, 2, 2, RUN(run), STRATEGY(lambda ctx, count: ctypes.addressof(STRATEGY_NAME)))
    try:
        for name in "ab":
            lane = engine.add_lane(kernel=capsule_of(api), in_features=2, out_features=2, name=name)
            engine.submit(lane, np.ones((1, 2), np.float32), DType.fp32, 1, 0, None, queue)
        assert engine.wait_idle(30)
    finally:
        engine.stop()
    assert max(busy_threads) == 1


def test_capsule_of_another_kind_or_shape_is_refused(engine):
    with pytest.raises(ValueError, match="interface version 3, got 2"):
        engine.add_lane(kernel=capsule_of(make_api(0, abi=2)), in_features=2, out_features=2)
    with pytest.raises(ValueError, match="expected 3 inputs"):
        engine.add_lane(kernel=capsule_of(make_api(0)), in_features=3, out_features=2)
    with pytest.raises(ValueError, match="incorrect name"):
        engine.add_lane(kernel=capsule_of(make_api(0), b"other"), in_features=2, out_features=2)
