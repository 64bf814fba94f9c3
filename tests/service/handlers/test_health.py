# SPDX-License-Identifier: Apache-2.0
"""Health: watchers hear of every change, and nothing turns healthy again once the drain has begun."""

from fused_mlp.service.handlers.health import Health, Serving


async def test_watcher_hears_the_state_now_and_each_change() -> None:
    health = Health()
    watch = health.watch("digits")
    assert await anext(watch) is Serving.SERVICE_UNKNOWN
    health.set("digits", Serving.SERVING)
    assert await anext(watch) is Serving.SERVING
    health.set("other", Serving.SERVING)  # wakes the watcher, tells it nothing
    health.update({}, removed=["digits"])
    assert await anext(watch) is Serving.SERVICE_UNKNOWN


async def test_drain_tells_watchers_and_close_ends_them() -> None:
    health = Health()
    health.set("", Serving.SERVING)
    watch = health.watch("")
    assert await anext(watch) is Serving.SERVING
    health.drain()
    assert await anext(watch) is Serving.NOT_SERVING
    health.close()
    assert [status async for status in watch] == []
    health.set("", Serving.SERVING)
    assert not health.ready


async def test_process_that_has_failed_never_turns_healthy_again() -> None:
    health = Health()
    health.update({"": Serving.SERVING, "digits": Serving.SERVING})
    watch = health.watch("digits")
    assert await anext(watch) is Serving.SERVING
    health.fail("cuda:0 is lost: an illegal memory access was encountered")
    assert await anext(watch) is Serving.NOT_SERVING
    health.update({"": Serving.SERVING, "new": Serving.SERVING})
    assert set(health.all().values()) == {Serving.NOT_SERVING}
