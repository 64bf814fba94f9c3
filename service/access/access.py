# SPDX-License-Identifier: Apache-2.0
"""The permissions of callers, for all ports: the file of FUSED_MLP_KEYS and the lists of FUSED_MLP_CALLERS become one
set of rules, which C++ checks for predictions and handlers check for everything else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fused_mlp.service import _engine
from fused_mlp.service.access.callers import read_list
from fused_mlp.service.access.key_file import ActionName, CallerEntry, KeyFile, read_key_file
from fused_mlp.service.access.reloading import Reload
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.settings.settings import Settings, SettingsError, is_loopback

log = logging.getLogger(__name__)

KEY_HEADER = "x-api-key"
SUBJECT_HEADER = "x-fused-mlp-caller"  # from proxies that the file names


class Access:
    """Raises SettingsError when a file cannot be used. Actions for which this server does not ask who calls are open to
    every caller: see `asks`."""

    def __init__(self, settings: Settings) -> None:
        self.callers = _engine.Callers()
        self.keys_on = settings.keys is not None
        lists = {"admin": settings.callers.admin, "metrics": settings.callers.metrics}
        self._asks = {
            _engine.Action.predict: self.keys_on,
            _engine.Action.describe: self.keys_on,
            _engine.Action.admin: self.keys_on or lists["admin"] is not None,
            _engine.Action.metrics: lists["metrics"] is not None
            or (self.keys_on and not is_loopback(settings.metrics_host)),
        }
        certificates = settings.tls_client_ca is not None
        self._read: dict[str, tuple[Path, Callable[[Path], KeyFile]]] = {}
        if settings.keys is not None:
            self._read["keys"] = (settings.keys, read_key_file)
        if lists["admin"] not in (None, settings.keys):
            self._read["admin_callers"] = (
                lists["admin"],
                lambda path: _from_list(path, "admin", certificates=certificates),
            )
        if lists["metrics"] not in (None, settings.keys):
            self._read["metrics_callers"] = (
                lists["metrics"],
                lambda path: _from_list(path, "metrics", certificates=False),
            )
        self._files: dict[str, KeyFile] = {}
        for name in self._read:
            try:
                self._load(name)
            except (OSError, ValueError) as error:
                raise SettingsError(str(error)) from None
        self._warn_of_plain_text(settings)
        if self.asks(_engine.Action.metrics) and lists["metrics"] is None:
            log.info("other machines can reach the metrics port: it asks for keys with the action metrics")

    def asks(self, action: _engine.Action) -> bool:
        """False: every caller may."""
        return self._asks[action]

    def reloads(self) -> list[Reload]:
        return [
            Reload(name, [path], lambda name=name: self._load(name))  # type: ignore[misc]
            for name, (path, _) in self._read.items()
        ]

    def identify(
        self, metadata: Mapping[str, str], certificate_names: Sequence[str], peer_address: str
    ) -> _engine.Identity:
        """Raises InvalidInput for several names of a caller: a proxy must replace what its caller sent."""
        if "," in metadata.get(SUBJECT_HEADER, ""):
            raise InvalidInput(f"{SUBJECT_HEADER}: expected one name without commas, got several")
        return self.callers.identify(
            key=shown_key(metadata),
            subject=metadata.get(SUBJECT_HEADER),
            certificate_names=certificate_names,
            peer_address=peer_address,
        )

    def may_read_metrics(self, metadata: Mapping[str, str], peer_address: str) -> bool:
        if not self.asks(_engine.Action.metrics):
            return True
        caller = self.identify(metadata, (), peer_address).caller
        return caller is not None and caller.allows(_engine.Action.metrics)

    def _load(self, name: str) -> None:
        """Raises OSError or ValueError, and keeps what it had."""
        path, read = self._read[name]
        self._files = {**self._files, name: read(path)}
        keys = self._files.get("keys", KeyFile())
        listed = [entry for file in self._files.values() if file is not keys for entry in file.callers]
        entries = _merged(keys.callers, listed)
        self.callers.publish([entry.rules() for entry in entries], keys.networks(), keys.proxy_names)

    def _warn_of_plain_text(self, settings: Settings) -> None:
        admin_host = settings.admin_host if settings.admin_port else settings.host
        for name, host, secure in (
            ("keys", settings.host, settings.tls_certificate),
            ("admin_callers", admin_host, settings.tls_certificate),
            ("metrics_callers", settings.metrics_host, settings.metrics_tls),
        ):
            file = self._files.get(name)
            if file and any(entry.sha256 for entry in file.callers) and not secure and not is_loopback(host):
                path, _ = self._read[name]
                log.warning("the keys or tokens of %s come to %s in plain text: use TLS", path, host)


def shown_key(metadata: Mapping[str, str]) -> str | None:
    """The key that a call shows, read as the native front reads it; None: it shows none."""
    scheme, _, key = metadata.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else metadata.get(KEY_HEADER)


def _from_list(path: Path, action: ActionName, *, certificates: bool) -> KeyFile:
    listed = read_list(path, certificates=certificates)
    entries = [
        CallerEntry.model_construct(name=name, certificates=(name,), actions=(action,))
        for name in sorted(listed.names)
    ]
    entries += [
        CallerEntry.model_construct(name=f"token sha256:{digest[:8]}", sha256=digest, actions=(action,))
        for digest in sorted(listed.digests)
    ]
    return KeyFile.model_construct(callers=tuple(entries))


def _merged(entries: Sequence[CallerEntry], listed: Sequence[CallerEntry]) -> list[CallerEntry]:
    """A list adds its action to the key or the certificate name that it holds. All else, such as the models and other
    names of the same caller, stays as the entry has it."""
    added: dict[str | None, CallerEntry] = {}
    for each in listed:
        name = each.sha256 or each.certificates[0]
        before = added.get(name, each.model_copy(update={"actions": ()}))
        added[name] = before.model_copy(update={"actions": (*before.actions, *each.actions)})
    merged = []
    for entry in entries:
        rest = entry
        for identity in (entry.sha256, *entry.certificates):
            if (found := added.pop(identity, None)) is None:
                continue
            merged.append(
                entry.model_copy(
                    update={
                        "sha256": found.sha256,
                        "certificates": found.certificates,
                        "subjects": (),
                        "actions": (*entry.actions, *found.actions),
                    }
                )
            )
            rest = rest.model_copy(
                update={
                    "sha256": None if found.sha256 else rest.sha256,
                    "certificates": tuple(each for each in rest.certificates if each != identity),
                }
            )
        if rest.sha256 or rest.certificates or rest.subjects:
            merged.append(rest)
    return [*merged, *added.values()]
