# SPDX-License-Identifier: Apache-2.0
"""Builds the kernels of a version when a policy can reach them, and gives each a lane in the engine. Runs on the thread
that loads a model or changes a policy, never on one that serves."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from fused_mlp import kernels
from fused_mlp.extras import install_command
from fused_mlp.kernels import Kernel, KernelError, KernelRefuted, KernelUnavailable
from fused_mlp.kernels.registry import compile_like
from fused_mlp.models import Mlp, ModelLoadError
from fused_mlp.models.repository.version_directory import stored_tensors
from fused_mlp.models.weights.precision import reduce_precision, to_precision
from fused_mlp.models.weights.precision_error import PrecisionError
from fused_mlp.models.weights.quantization import Precision
from fused_mlp.models.weights.tables import OpenTables, set_mode
from fused_mlp.service import _engine
from fused_mlp.service.catalog.ledger import Ledger
from fused_mlp.service.catalog.records import Fallback, ServedVersion
from fused_mlp.service.catalog.stored_weights import StoredWeights
from fused_mlp.service.catalog.versions.input_layout import layout_of
from fused_mlp.service.catalog.versions.placement import build_placed, choose_devices
from fused_mlp.service.policy.policy import Policy
from fused_mlp.service.settings.settings import Settings
from fused_mlp.variant import VARIANTS, Variant

log = logging.getLogger(__name__)
MAX_MEASURED = 4096  # errors that are remembered, of a few hundred bytes each


class KernelBuilder:
    def __init__(self, settings: Settings, engine: _engine.Engine, ledger: Ledger) -> None:
        self._settings = settings
        set_mode(settings.tables)
        self._engine = engine
        self._ledger = ledger
        # By weights, program and precision: the error, or why it was refused.
        self._measured: dict[tuple[bytes | None, str, Precision], PrecisionError | str] = {}

    def build(
        self, name: str, stored: StoredWeights, saved: Mlp, policy: Policy, *, strict: bool = False
    ) -> ServedVersion:
        """Builds a version from the weights in its files, with all kernels that the policy can reach. A version that
        loses too much in the policy's precision keeps its own, or raises KernelUnavailable if `strict`."""
        label = f"{name}/{stored.found.version}"
        mlp, reason = saved, ""
        if policy.precision not in ("float32", saved.precision) and not saved.reduced:
            try:
                mlp = self._reduced(stored, saved, policy.precision)
                log.info("%s in %s: %s", label, mlp.precision, mlp.error)
            except ModelLoadError as error:
                if strict:
                    raise KernelUnavailable(f"{label}: {error}") from error
                reason = f"stays in {saved.spec.dtype}: {error}"
                log.warning("%s %s", label, reason)
        served = ServedVersion(
            name,
            stored.found.version,
            "READY",
            reason,
            spec=mlp.spec,
            layout=layout_of(mlp.spec),
            example=mlp.example,
            weights=stored.loaded_as(mlp),
            tables=OpenTables(stored_tensors(mlp).values()),
            precision=mlp.precision,
            wanted=policy.precision,
            precision_error=mlp.error,
            signature=stored.found.signature,
        )
        return self.with_kernels(served, policy, mlp)

    def _reduced(self, stored: StoredWeights, saved: Mlp, precision: Precision) -> Mlp:
        """The error is measured once for the same weights, however often they are loaded."""
        key = (stored.digest, saved.spec.model_dump_json(), precision)
        known = self._measured.get(key)
        if isinstance(known, PrecisionError):
            mlp = to_precision(saved, precision, frozenset(known.kept))
            mlp.error = known
            return mlp
        if known is not None:
            raise ModelLoadError(known)
        if len(self._measured) >= MAX_MEASURED:
            self._measured.pop(next(iter(self._measured)), None)
        try:
            mlp = reduce_precision(saved, precision)
        except ModelLoadError as error:
            self._measured[key] = str(error)
            raise
        if mlp.error is not None:
            self._measured[key] = mlp.error
        return mlp

    def complete(self, served: ServedVersion, policy: Policy, *, strict: bool = False) -> ServedVersion:
        """Builds what the version lacks under the policy: further kernels, or all of them again in another
        precision."""
        if not served.outdated(policy):
            return self.with_kernels(served, policy)
        assert served.weights is not None
        try:
            saved = served.weights.read_saved()
        except ModelLoadError as error:
            raise KernelUnavailable(f"{served.model}/{served.version}: {error}") from error
        built = self.build(served.model, served.weights, saved, policy, strict=strict)
        if built.state != "READY":
            raise KernelUnavailable(f"{served.model}/{served.version}: {built.reason}")
        return built

    def with_kernels(self, served: ServedVersion, policy: Policy, mlp: Mlp | None = None) -> ServedVersion:
        """The version with all kernels that the policy can reach: builds those that are missing, from `mlp` or from its
        files. A fused kernel that cannot be built is replaced by unfused; without that either, the version is
        UNAVAILABLE."""
        missing = served.missing(policy)
        if not missing or served.weights is None:
            return served
        if mlp is None:
            try:
                mlp = served.weights.read()
            except ModelLoadError as error:
                raise KernelUnavailable(f"{served.model}/{served.version}: {error}") from error
        label = f"{served.model}/{served.version}"
        built: dict[Variant, Kernel] = {}
        fallback, reason = served.fallback, served.reason
        devices = choose_devices(self._settings.device, (info.device for info in served.kernels))
        if "unfused" in missing:
            built["unfused"] = self._compile_unfused(mlp, devices)
        if "fused" in missing:
            try:
                built["fused"] = self._compile_fused(mlp, devices)
            except KernelError as error:
                if self._settings.backend != "auto":
                    raise
                reason = f"no fused kernel: {error}"
                fallback = Fallback(
                    "load_check" if isinstance(error, KernelRefuted) else "unavailable", reason
                )
        if fallback and "unfused" not in built and "unfused" not in served.lanes:
            try:
                built["unfused"] = self._compile_unfused(mlp, devices)
            except KernelError as error:
                log.error("%s is not served: %s; %s", label, reason, error)
                return replace(served, state="UNAVAILABLE", reason=f"{reason}; {error}", spec=None)
        if fallback and not served.fallback:
            log.error("%s: serving UNFUSED, %s", label, reason)

        added = {v: self._add_lane(served, v, kernel) for v, kernel in built.items()}
        lanes = served.lanes | added
        infos = (*served.kernels, *(kernel.describe() for kernel in built.values()))
        shadow = served.shadow
        if shadow is None and len(lanes) == len(VARIANTS):
            on_cpu = all(info.device == "cpu" for info in infos)
            shadow = self._engine.add_shadow(
                label,
                lanes["fused"],
                lanes["unfused"],
                cpu_time=on_cpu,
                metrics=self._ledger.shadow(served.model, served.version),
            )
        return replace(
            served,
            reason=reason,
            kernels=tuple(sorted(infos, key=lambda info: VARIANTS.index(info.variant))),
            lanes={v: lanes[v] for v in VARIANTS if v in lanes},
            shadow=shadow,
            fused=built.get("fused", served.fused),
            fallback=fallback,
            memory_bytes=served.memory_bytes + sum(kernel.memory_bytes for kernel in built.values()),
            loaded_ns=time.monotonic_ns(),
        )

    def _compile_fused(self, mlp: Mlp, devices: tuple[str, ...]) -> Kernel:
        def build(device: str, like: Kernel | None) -> Kernel:
            if like is not None:
                return compile_like(like, mlp, device, self._settings.backend)
            return kernels.compile(
                mlp,
                variant="fused",
                device=device,
                backend=self._settings.backend,
                threads=self._settings.threads,
                tf32=self._settings.tf32,
            )

        return build_placed(self._settings.device, devices, build)

    def _compile_unfused(self, mlp: Mlp, devices: tuple[str, ...]) -> Kernel:
        _require_torch()
        return build_placed(
            self._settings.device,
            devices,
            lambda device, _: kernels.compile(
                mlp, variant="unfused", device=device, tf32=self._settings.tf32
            ),
        )

    def _add_lane(self, served: ServedVersion, variant: Variant, kernel: Kernel) -> _engine.Lane:
        capsule: Any = kernel.capsule()
        info = kernel.describe()
        return self._engine.add_lane(
            model=served.model,
            name=f"{served.model}/{served.version}/{variant}",
            kernel=kernel.run if capsule is None else capsule,
            in_features=kernel.spec.in_features,
            out_features=kernel.spec.out_features,
            max_batch_rows=self._settings.max_batch_rows,
            max_wait_us=self._settings.max_wait_us,
            queue_rows=self._settings.queue_rows,
            target_queue_ms=self._settings.target_queue_ms,
            one_core=info.device == "cpu" and info.threads == 1,
            metrics=self._ledger.lane(served.model, served.version, variant),
        )


def check_torch(policy: Policy) -> None:
    """Raises KernelUnavailable for a policy that needs torch where it is not installed."""
    if "unfused" in policy.variants:
        _require_torch()


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise KernelUnavailable(
            f"the unfused variant needs torch, which is not installed: {install_command('torch')}"
        )
