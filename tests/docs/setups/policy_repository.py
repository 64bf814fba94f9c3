# SPDX-License-Identifier: Apache-2.0
"""repo/: the model `policy`, an actor-critic with the outputs `pi` and `v`; states.csv: rows for it."""

import numpy as np

import fused_mlp
from fused_mlp.models.program.spec import Elementwise, Linear, MlpSpec, Output, Softmax

spec = MlpSpec(
    in_features=8,
    steps=[
        Linear(name="trunk", input="input", out_features=64),
        Elementwise(name="act", input="trunk", function="tanh"),
        Linear(name="policy", input="act", out_features=4),
        Softmax(name="probabilities", input="policy"),
        Linear(name="value", input="act", out_features=1),
    ],
    outputs=[Output(name="pi", value="probabilities"), Output(name="v", value="value", squeeze=True)],
)
generator = np.random.default_rng(0)
tensors = {name: generator.normal(0, 0.3, shape).astype(np.float32) for name, shape in spec.shapes()}
fused_mlp.save(fused_mlp.Mlp(spec, tensors), "repo/policy/1")
np.savetxt("states.csv", generator.normal(size=(5, 8)), delimiter=",")
