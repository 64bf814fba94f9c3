# SPDX-License-Identifier: Apache-2.0
"""Connects a command to a Ray cluster and to the controller of a fleet in it."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

# without this, each start prints a warning about a change in Ray
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fused_mlp.service.ray.controller import Controller
from fused_mlp.service.ray.deployment import Deployment, FleetError

NAMESPACE = "fused-mlp"
ANSWERS_WITHIN_S = 20.0
POLL_S = 0.2


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connects to a running cluster; never starts one. Raises FleetError."""
    try:
        place = urlsplit(address if "://" in address else f"//{address}")
        if place.hostname and place.port:  # Ray would try for minutes
            socket.create_connection((place.hostname, place.port), ANSWERS_WITHIN_S).close()
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (OSError, RuntimeError, ValueError) as error:
        what = str(error).strip().splitlines() or [type(error).__name__]
        raise FleetError(
            f"no Ray cluster at {address}: {what[0]}; start one with `ray start --head`, or name one with --address"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


class Fleet:
    """The fleet with that name, through its controller. Raises FleetError if it does not exist or does not answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self._controller = ray.get_actor(_controller(name))
        except ValueError:
            raise FleetError(f"there is no fleet {name!r}; `fused-mlp ray up` starts one") from None

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._ask(self._controller.status.remote)
        return answer

    def deployment(self) -> Deployment:
        answer: Deployment = self._ask(self._controller.deployment.remote)
        return answer

    def roll_out(self, deployment: Deployment) -> None:
        self._ask(lambda: self._controller.roll_out.remote(deployment))

    def down(self) -> None:
        """Returns when all replicas have answered the requests they accepted, and have ended."""
        while True:
            self._ask(
                self._controller.down.remote
            )  # sent again, because a restarted controller has forgotten it
            if not self.status()["replicas"]:
                break
            time.sleep(POLL_S)
        ray.kill(self._controller, no_restart=True)

    def _ask(self, call: Callable[[], Any]) -> Any:
        """Calls a method of the controller, and calls it again while the controller restarts."""
        until = time.monotonic() + ANSWERS_WITHIN_S
        while True:
            try:
                return ray.get(call(), timeout=max(0.1, until - time.monotonic()))
            except FleetError as error:
                raise FleetError(str(error.cause)) from None  # type: ignore[attr-defined] # Ray adds it
            except (RayActorError, GetTimeoutError) as error:
                if time.monotonic() >= until:
                    what = str(error).splitlines()[0]
                    raise FleetError(f"the controller of {self.name!r} does not answer: {what}") from None
                time.sleep(POLL_S)


def create(deployment: Deployment) -> Fleet:
    """Starts the controller, on this node if possible: it writes the endpoint files there."""
    name = _controller(deployment.name)
    if name in ray.util.list_named_actors():
        raise _already_up(deployment.name)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    try:
        ray.remote(Controller).options(
            name=name,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=8,
            scheduling_strategy=here,
        ).remote(deployment)
    except (ValueError, RayError):
        raise _already_up(deployment.name) from None
    return Fleet(deployment.name)


def _already_up(name: str) -> FleetError:
    return FleetError(
        f"the fleet {name!r} is up; `fused-mlp ray rollout` changes it, `fused-mlp ray down` ends it"
    )


def _controller(name: str) -> str:
    return f"{name}/controller"
