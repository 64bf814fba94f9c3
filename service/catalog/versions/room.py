# SPDX-License-Identifier: Apache-2.0
"""Limits the memory of loaded kernels, and reserves some for versions that are being loaded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable

from fused_mlp.models import MlpSpec, ModelLoadError
from fused_mlp.models.weights.quantization import Precision
from fused_mlp.service.catalog.records import ServedVersion
from fused_mlp.service.policy.policy import Policy
from fused_mlp.variant import Variant

# A version that has not run yet stays that long: those that waited for it come within this time.
MIN_STAY_S = 0.1
MAX_WAIT_FOR_ROOM_S = 5.0
POLL_S = 0.02

Key = tuple[str, int]  # model, version

_WEIGHT_BYTES: dict[Precision, int] = {"float32": 4, "bfloat16": 2, "int8": 1}


def estimated_bytes(
    spec: MlpSpec, saved_in: Precision, policy: Policy, variants: Collection[Variant] | None = None
) -> int:
    """The size of a version's kernels before they are built: of all that the policy can reach, or of `variants`."""
    precision = policy.precision if saved_in == "float32" else saved_in
    fused = _WEIGHT_BYTES[precision]
    unfused = 4 if precision == "int8" else fused  # torch computes int8 weights in float32
    wanted = policy.variants if variants is None else variants
    return spec.parameters * sum(fused if variant == "fused" else unfused for variant in wanted)


def bytes_to_build(version: ServedVersion, policy: Policy) -> int:
    """The size of the kernels that the version lacks under the policy; in another precision, of all of them."""
    if not version.lacks(policy):
        return 0
    assert version.spec is not None
    assert version.weights is not None
    variants = policy.variants if version.outdated(policy) else version.missing(policy)
    saved_in = version.precision if version.weights.reduced else "float32"
    return estimated_bytes(version.spec, saved_in, policy, variants)


class NoRoom(ModelLoadError):
    """Other models that are in use fill the memory."""

    def __init__(self) -> None:
        super().__init__("no room: the models that fill FUSED_MLP_MAX_LOADED_BYTES are in use; retry later")


class Room:
    """`max_bytes`: None for any number. `unload` returns whether it did."""

    def __init__(
        self,
        max_bytes: int | None,
        loaded: Callable[[], Collection[ServedVersion]],
        unload: Callable[[ServedVersion], bool],
    ) -> None:
        self.max_bytes = max_bytes
        self._loaded = loaded
        self._unload = unload
        self._lock = threading.Lock()
        self._taken: dict[Hashable, int] = {}  # by those that are being loaded

    def could_hold(self, size: int) -> bool:
        """Whether the size would fit if nothing else were loaded."""
        return self.max_bytes is None or size <= self.max_bytes

    def take(self, holder: Hashable, size: int, *, instead_of: Key | None = None) -> None:
        """try_take() until there is room. Raises NoRoom when other models stay in use for too long."""
        until = time.monotonic() + MAX_WAIT_FOR_ROOM_S
        while not self.try_take(holder, size, instead_of=instead_of):
            if time.monotonic() > until:
                raise NoRoom
            time.sleep(POLL_S)

    def try_take(
        self,
        holder: Hashable,
        size: int,
        *,
        instead_of: Key | None = None,
        loaded: Collection[ServedVersion] | None = None,
    ) -> bool:
        """Unload what was used least recently until `size` bytes fit, and keep them for the holder until give_back(),
        in place of what it had. `instead_of`: a version that stays and whose bytes are part of `size`. `loaded`: what
        is, if the caller knows. Raises ModelLoadError when they can never fit."""
        if self.max_bytes is None:
            return True
        if size > self.max_bytes:
            raise ModelLoadError(
                f"it needs {size:,} bytes, more than the {self.max_bytes:,} of FUSED_MLP_MAX_LOADED_BYTES"
            )
        with self._lock:
            others = sum(bytes_ for other, bytes_ in self._taken.items() if other != holder)
            versions = self._loaded() if loaded is None else loaded
            versions = [v for v in versions if (v.model, v.version) != instead_of]
            excess = sum(v.memory_bytes for v in versions) + others + size - self.max_bytes
            before = time.monotonic_ns() - int(MIN_STAY_S * 1e9)
            idle = [v for v in versions if (v.has_run or v.loaded_ns <= before) and not v.in_flight]
            if sum(v.memory_bytes for v in idle) < excess:
                return False  # unloading all of them would not help
            for version in sorted(idle, key=lambda v: v.last_used_ns):
                if excess <= 0:
                    break
                if self._unload(version):
                    excess -= version.memory_bytes
            if excess > 0:
                return False
            self._taken[holder] = size
            return True

    def give_back(self, holder: Hashable) -> None:
        with self._lock:
            self._taken.pop(holder, None)
