# SPDX-License-Identifier: Apache-2.0
"""A version that cannot be read, in whatever way, is the problem of that version: the server starts, serves and follows
all others."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fused_mlp.service.client import Client, PredictError
from tests.support.server import COMMAND, Server, demo_copy
from tests.support.waiting import wait_until

X = np.zeros((1, 64), np.float32)
# Root reads everything, unless these are taken away: a folder without permissions is then closed to its owner too.
WITHOUT_PRIVILEGES = (
    ("setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--") if os.geteuid() == 0 else ()
)
GIANT = 1 << 18  # features of a layer with 256 GiB of weights


def close_folder(version: Path) -> None:
    version.chmod(0)


def close_model(version: Path) -> None:
    version.parent.chmod(0)


def list_only(version: Path) -> None:
    version.parent.chmod(0o444)  # names can be read, nothing more


def loop(version: Path) -> None:
    (version / "model.json").unlink()
    (version / "model.json").symlink_to("model.json")


def loop_of_folders(version: Path) -> None:
    shutil.rmtree(version)
    version.symlink_to(version.name)


def nest(version: Path) -> None:
    depth = 100_000
    text = '{"format": "safetensors/1", "activation": ' + "[" * depth + "]" * depth + "}"
    (version / "model.json").write_text(text)


def inflate(version: Path) -> None:
    """A sparse file: a few blocks on the disk, 256 GiB of weights to read."""
    layer = {"out_features": GIANT, "activation": "identity"}
    spec = {"in_features": GIANT, "layers": [layer]}
    (version / "model.json").write_text(json.dumps({"format": "fused-mlp/1", "spec": spec}))
    sizes = {"layers.0.weight": [GIANT, GIANT], "layers.0.bias": [GIANT]}
    header, end = {}, 0
    for name, shape in sizes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    weights = version / "model.safetensors"
    weights.write_bytes(struct.pack("<Q", len(head)) + head)
    os.truncate(weights, 8 + len(head) + end)
    (version / "model.safetensors.sha256").unlink(missing_ok=True)


FAULTS = (close_folder, close_model, list_only, loop, loop_of_folders, nest, inflate)
BAD = {f"bad-{number}": damage for number, damage in enumerate(FAULTS)}  # models


@pytest.fixture
def root(tmp_path: Path):
    yield demo_copy(tmp_path / "models")
    for folder in (tmp_path / "models").iterdir():
        folder.chmod(0o755)


def add(root: Path, model: str, version: int, damage: Callable[[Path], None] | None = None) -> None:
    """Appears whole."""
    folder = root.parent / "draft" / str(version)
    shutil.copytree(root / "digits" / "1", folder)
    if damage not in (None, close_model, list_only):
        damage(folder)
    (root / model).mkdir(exist_ok=True)
    folder.rename(root / model / str(version))
    if damage in (close_model, list_only):
        damage(root / model / str(version))


def start(root: Path, **settings: object) -> Server:
    return Server(command=[*WITHOUT_PRIVILEGES, *COMMAND], model_repository=root, **settings)


def states(client: Client) -> dict[str, list[str]]:
    return {model.name: [v.state for v in model.versions] for model in client.models()}


def in_digits(damage: Callable[[Path], None]) -> bool:
    """Whether one version of a model can have the fault alone."""
    return damage not in (close_model, list_only)


@pytest.mark.parametrize("load", ["eager", "lazy"])
def test_a_server_starts_beside_them(root: Path, load: str) -> None:
    for number, (name, damage) in enumerate(BAD.items(), 2):
        add(root, name, 1, damage)
        late = damage is inflate and load == "lazy"  # its header is fine: only a load finds out
        if in_digits(damage) and not late:
            add(root, "digits", number, damage)
    with start(root, load=load) as server, Client(server.target) as client:
        assert client.predict("digits", X).version == 1
        assert server.get("/readyz")[0] == 200
        log = server.log()
        assert "Traceback" not in log
        assert str(root) not in json.dumps([v.reason for m in client.models() for v in m.versions])
        for name, damage in BAD.items():
            if load == "eager":
                told = [line for line in log.splitlines() if name in line]
                assert len(told) == 1, told
            if in_digits(damage):
                with pytest.raises(PredictError):
                    client.predict(name, X)
            # The versions of a closed model cannot be listed.
            assert states(client)[name] == ([] if damage is close_model else ["UNAVAILABLE"])
        assert server.metric("fused_mlp_repository_problems") == 1


def test_other_models_are_followed_beside_them(root: Path) -> None:
    with (
        start(root, reload="poll:0.1", reload_settle_s=0) as server,
        Client(server.target) as client,
    ):
        for number, (name, damage) in enumerate(BAD.items(), 2):
            add(root, name, 1, damage)
            if in_digits(damage):
                add(root, "digits", number, damage)
            add(root, f"other-{number}", 1)
            wait_until(lambda number=number: states(client).get(f"other-{number}") == ["READY"])
        add(root, "zebra", 1)
        wait_until(lambda: states(client).get("zebra") == ["READY"])
        assert client.predict("digits", X).version == 1
        assert "Traceback" not in server.log()


def test_they_are_tried_again_where_nothing_is_reloaded(root: Path) -> None:
    tried = {
        name: damage for name, damage in BAD.items() if damage in (close_folder, close_model, loop_of_folders)
    }
    for name, damage in tried.items():
        add(root, name, 1, damage)
    with start(root) as server, Client(server.target) as client:
        for name, damage in tried.items():
            assert "READY" not in states(client)[name]
            if damage is loop_of_folders:
                (root / name / "1").unlink()
                shutil.copytree(root / "digits" / "1", root / name / "1")
            for folder in (root / name, root / name / "1"):
                folder.chmod(0o755)
        for name in tried:
            wait_until(lambda name=name: states(client)[name] == ["READY"])  # ten seconds after the start
        assert server.metric("fused_mlp_repository_problems") == 0
