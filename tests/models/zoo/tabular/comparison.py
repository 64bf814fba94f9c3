# SPDX-License-Identifier: Apache-2.0
"""ONNX files of rankers and tabular models: pipelines of scikit-learn, exports of torch by both exporters, and graphs
as tf2onnx writes those of Keras. `python -m tests.models.zoo.tabular` prints which are taken, and why others are
not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Tabular:
    """`make`: the model, and rows for each of its inputs."""

    name: str
    make: Callable[[], tuple[Any, Feeds]]


# What is not taken, and part of the message.
REFUSED = {
    "sklearn a matrix, quantile transform": "a cast of computed floats to whole numbers",
    "torch embedding bag": "Loop is not part of an MLP",
    "dynamo embedding bag": "SequenceEmpty is not part of an MLP",
    "keras hashed crossing": "Mod is not part of an MLP",
    "keras words joined": "StringNormalizer of words is not read",
}


def entries() -> list[Tabular]:
    from tests.models.zoo.tabular.keras_graphs import GRAPHS
    from tests.models.zoo.tabular.pipelines import PIPELINES
    from tests.models.zoo.tabular.rankers import RANKERS, exported

    made = [Tabular(f"sklearn {name}", pipeline) for name, pipeline in PIPELINES.items()]
    for name, ranker in RANKERS.items():
        for exporter in ("torch", "dynamo"):
            made.append(
                Tabular(
                    f"{exporter} {name}", lambda r=ranker, e=exporter: exported(r(), dynamo=e == "dynamo")
                )
            )
    return made + [Tabular(f"keras {name}", graph) for name, graph in GRAPHS.items()]


def answers(model: Any, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What ONNX Runtime answers: the outputs that are floats, each (rows, n)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    found = {}
    for name, given in zip(names, session.run(None, dict(feeds)), strict=True):
        # A ZipMap answers a dict for each row.
        answer = np.array([list(row.values()) for row in given]) if isinstance(given, list) else given
        if answer.dtype.kind == "f":
            found[name] = answer.reshape(len(answer), -1)
    return found


def compare(entry: Tabular, folder: Path) -> Any:
    """Reads the file and compares the program with ONNX Runtime; the model that was read."""
    from fused_mlp import models
    from fused_mlp.models.program.evaluation import evaluate

    model, feeds = entry.make()
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    mlp = models.from_onnx(path)
    expected = answers(model, feeds)
    given = mlp.spec.inputs
    if given is None:
        (only,) = feeds.values()
        rows = only.reshape(len(only), -1).astype(np.float32)
    else:
        rows = np.concatenate(
            [each.pack(sent) for each, sent in zip(given, feeds.values(), strict=True)], axis=1
        )
    got = evaluate(mlp, rows.astype(np.float32)).astype(np.float64)
    want = np.concatenate([expected[name] for name in expected], axis=1)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5 * max(1.0, float(np.abs(want).max())))
    return mlp
