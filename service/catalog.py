"""What is served: loads model versions, builds both kernels for each, gives them lanes in the engine, and
publishes the routes. Load and unload run on one thread at a time; readers see whole snapshots."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import kernels
from kernels import Kernel, KernelError, KernelInfo, Variant
from models import Mlp, ModelLoadError
from models.repository import FoundVersion, Repository
from service import _engine
from service.errors import ModelNotFound
from service.settings import Settings

log = logging.getLogger(__name__)

State = Literal["READY", "UNAVAILABLE"]
VARIANTS: tuple[Variant, Variant] = ("fused", "unfused")


@dataclass(frozen=True)
class ServedVersion:
    """One version: READY with a lane for each variant, or UNAVAILABLE with the reason."""

    model: str
    version: int
    state: State
    reason: str = ""
    mlp: Mlp | None = None
    variant: Variant = "fused"
    kernels: tuple[KernelInfo, ...] = ()
    lanes: dict[Variant, _engine.Lane] = field(default_factory=dict)


@dataclass(frozen=True)
class ServedModel:
    name: str
    versions: tuple[ServedVersion, ...]

    @property
    def ready(self) -> tuple[ServedVersion, ...]:
        return tuple(v for v in self.versions if v.state == "READY")

    @property
    def default(self) -> ServedVersion | None:
        """The highest version that can answer."""
        return self.ready[-1] if self.ready else None

    @property
    def problems(self) -> str:
        """In one line, why versions cannot answer."""
        broken = [f"{self.name}/{v.version}: {v.reason}" for v in self.versions if v.state != "READY"]
        return "; ".join(broken) or f"{self.name}: no version found"


class Catalog:
    def __init__(self, settings: Settings, engine: _engine.Engine, router: _engine.Router) -> None:
        self._settings = settings
        self._engine = engine
        self._router = router
        self._repository = Repository(settings.model_repository)
        kernels.use_kernel_cache(settings.kernel_cache)
        self._models: dict[str, ServedModel] = {}
        self._changing = threading.Lock()
        self._on_change: list[Callable[[], object]] = []

    def models(self) -> list[ServedModel]:
        return sorted(self._models.values(), key=lambda model: model.name)

    def get(self, name: str) -> ServedModel:
        try:
            return self._models[name]
        except KeyError:
            raise ModelNotFound(_engine.quote_name(name)) from None

    def find(self, name: str, version: int = 0) -> ServedVersion:
        """A version by number; 0 is the default. Raises ModelNotFound."""
        model = self.get(name)
        if version == 0 and model.default is not None:
            return model.default
        for served in model.versions:
            if version in (0, served.version):
                return served
        raise ModelNotFound(_engine.quote_name(name), version)

    def on_change(self, callback: Callable[[], object]) -> None:
        """Called after every load and unload, on the thread that did it."""
        self._on_change.append(callback)

    def load_all(self) -> None:
        """Everything in the repository. Broken versions are reported; nothing to serve at all is an error."""
        for found in self._repository.scan():
            for problem in found.problems:
                log.warning("%s", problem)
            self.load(found.name)
        if not any(model.ready for model in self.models()):
            why = "; ".join(model.problems for model in self.models())
            raise ModelLoadError(f"nothing to serve in {self._repository.root}: {why}")

    def load(self, name: str) -> ServedModel:
        """(Re)read one model: its new versions take over in one step, then the old lanes are let go. What serves
        is not given up for what cannot: ModelLoadError, and all stays as it was."""
        with self._changing:
            found = self._repository.find(name)
            versions: list[ServedVersion] = []
            try:
                for version in found.versions:
                    versions.append(self._load_version(name, version))
            except BaseException:
                self._release(versions)  # nobody was told of them
                raise
            served = ServedModel(name, tuple(versions))
            old = self._models.get(name)
            if old is not None and old.ready and not served.ready:
                raise ModelLoadError(f"model {name!r} serves on as it was: {served.problems}")
            self._swap(name, served)
            return served

    def unload(self, name: str) -> None:
        """Requests accepted before are answered; later ones get NOT_FOUND."""
        with self._changing:
            self.get(name)
            self._swap(name, None)

    def _swap(self, name: str, served: ServedModel | None) -> None:
        old = self._models.get(name)
        models = {key: model for key, model in self._models.items() if key != name}
        if served is not None:
            models[name] = served
        self._models = models
        self._router.publish(
            [_route(version, self._settings) for model in models.values() for version in model.versions]
        )
        if old is not None:
            self._release(old.versions)
        for callback in self._on_change:
            callback()

    def _release(self, versions: Iterable[ServedVersion]) -> None:
        for version in versions:
            for lane in version.lanes.values():
                self._engine.remove_lane(lane)

    def _load_version(self, name: str, found: FoundVersion) -> ServedVersion:
        """Under `auto` a fused kernel that cannot be trusted leaves the unfused one to serve, loudly; a backend
        asked for by name must run, so its error is the caller's."""
        started = time.monotonic()
        try:
            mlp = self._repository.read(found)
        except ModelLoadError as error:
            log.error("%s/%d is not served: %s", name, found.version, error)
            # Callers hear the reason too: where on this machine the repository lies is not for them.
            reason = str(error).replace(f"{self._repository.root}{os.sep}", "")
            return ServedVersion(name, found.version, "UNAVAILABLE", reason)
        unfused = kernels.compile(
            mlp, variant="unfused", device=self._settings.device, tf32=self._settings.tf32
        )
        built: dict[Variant, Kernel] = {"unfused": unfused}
        variant, reason = self._settings.variant, ""
        try:
            built["fused"] = kernels.compile(
                mlp,
                variant="fused",
                device=self._settings.device,
                backend=self._settings.backend,
                threads=self._settings.threads,
                tf32=self._settings.tf32,
            )
        except KernelError as error:
            if self._settings.backend != "auto":
                raise
            variant, reason = "unfused", f"no fused kernel: {error}"
            log.error("%s/%d: serving UNFUSED, %s", name, found.version, reason)
        built = {v: built[v] for v in VARIANTS if v in built}
        lanes = {v: self._add_lane(name, found.version, v, kernel) for v, kernel in built.items()}
        log.info(
            "loaded %s/%d (%s) in %.0f ms", name, found.version, mlp.spec.summary(),
            1000 * (time.monotonic() - started),
        )  # fmt: skip
        infos = tuple(kernel.describe() for kernel in built.values())
        return ServedVersion(name, found.version, "READY", reason, mlp, variant, infos, lanes)

    def _add_lane(self, name: str, version: int, variant: Variant, kernel: Kernel) -> _engine.Lane:
        capsule: Any = kernel.capsule()
        return self._engine.add_lane(
            name=f"{name}/{version}/{variant}",
            kernel=kernel.run if capsule is None else capsule,
            in_features=kernel.spec.in_features,
            out_features=kernel.spec.out_features,
            max_batch_rows=self._settings.max_batch_rows,
            max_wait_us=self._settings.max_wait_us,
            queue_rows=self._settings.queue_rows,
        )


def _route(served: ServedVersion, settings: Settings) -> _engine.RouteEntry:
    """Versions that failed to load have one too: who asks for them hears UNAVAILABLE, not NOT_FOUND."""
    spec = served.mlp.spec if served.mlp else None
    return _engine.RouteEntry(
        model=served.model,
        version=served.version,
        fused=served.lanes.get("fused"),
        unfused=served.lanes.get("unfused"),
        variant=_engine.Variant.fused if served.variant == "fused" else _engine.Variant.unfused,
        allow_override=True,
        ready=served.state == "READY",
        in_features=spec.in_features if spec else 0,
        out_features=spec.out_features if spec else 0,
        max_request_rows=settings.max_request_rows,
    )
