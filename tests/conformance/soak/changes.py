# SPDX-License-Identifier: Apache-2.0
"""The operator: loads models again with one version more or less, unloads and loads one, and changes policies, all
under traffic."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import grpc

from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client.admin import AdminClient
from tests.conformance.soak.books import Ledger
from tests.conformance.soak.repository import BIG, PASSING, RELOADED, SMALL, second_version

PAUSE_S = 0.3
DEADLINE_S = 60.0


class Operator(threading.Thread):
    def __init__(self, target: str, admin: str, root: Path, over: threading.Event) -> None:
        super().__init__()
        self._target, self._admin, self._over = target, admin, over
        self._inside, self._outside = root / "models" / RELOADED / "2", second_version(root)
        self._random = random.Random(0)
        self.ledger = Ledger()
        self.loads = self.policies = 0

    def run(self) -> None:
        try:
            with (
                grpc.insecure_channel(self._target) as channel,
                AdminClient(self._admin, timeout_s=60) as admin,
            ):
                repository = Stub(channel, oip, "GRPCInferenceService")
                load, unload = repository.RepositoryModelLoad, repository.RepositoryModelUnload
                while not self._over.is_set():
                    self._add_or_remove_a_version()
                    self._call(load, oip.RepositoryModelLoadRequest(model_name=RELOADED))
                    self._change_a_policy(admin)
                    self._call(unload, oip.RepositoryModelUnloadRequest(model_name=PASSING))
                    self._over.wait(PAUSE_S)
                    self._call(load, oip.RepositoryModelLoadRequest(model_name=PASSING))
                    self._change_a_policy(admin)
                    self._over.wait(PAUSE_S)
        except Exception as error:
            self.ledger.problems.append(f"operator: {type(error).__name__}: {error}")

    def _call(self, rpc: Callable[..., object], request: object) -> None:
        self.ledger.calls += 1
        rpc(request, timeout=DEADLINE_S)
        self.loads += 1

    def _add_or_remove_a_version(self) -> None:
        if self._inside.exists():
            self._inside.rename(self._outside)
        else:
            self._outside.rename(self._inside)

    def _change_a_policy(self, admin: AdminClient) -> None:
        """Not whether requests may choose: the callers do."""
        admin.set_policy(
            self._random.choice((SMALL, BIG, RELOADED)),
            variant=self._random.choice(("fused", "fused", "unfused")),
            split=self._random.choice((0.0, 0.1, 0.5)),
            shadow=self._random.choice((0.0, 0.05)),
        )
        self.policies += 1
