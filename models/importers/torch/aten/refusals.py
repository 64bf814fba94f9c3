# SPDX-License-Identifier: Apache-2.0
"""ATen operators that are no step of an MLP, with a word on why and on what to do."""

from __future__ import annotations

from fused_mlp.models.importers.building.products import ATTENTION

# Refused with a word on why; every other operator that is in neither table is refused as unknown.
_BATCH = "its result depends on the rows of the batch, not on one row alone"
CONVOLUTION = "a convolution is no step of an MLP: this server runs MLPs alone"
DROPS = "write F.dropout(x, p, self.training), or keep the module where eval() finds it"
_DISTANCE = (
    "a distance to points is no step of an MLP: write it out, (x * x).sum(-1) - 2 * x @ p.T + (p * p).sum(-1)"
)
RECURRENT = "a recurrent layer is no step of an MLP"
_RANDOM = "it draws random numbers: every row has one answer"
_ORDER = "it answers an order: answer the scores"
_RENORM = "a table with max_norm changes while it is read: renormalise it once, and leave max_norm out"
_QUANTISED = "quantised layers are not read: import the float model"
UNKNOWN = "the operator {} is no step of an MLP; see docs/models/index.md for those that are"
_STEPS = "a function with steps is no part of a formula"
_GROUPS: dict[str, tuple[str, ...]] = {
    CONVOLUTION: (
        "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "max_pool1d",
        "max_pool2d", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    ),
    ATTENTION: ("scaled_dot_product_attention", "_native_multi_head_attention"),
    _RENORM: ("embedding_renorm",),
    _RANDOM: ("rand_like", "randn_like", "bernoulli", "normal", "multinomial", "randint_like"),
    _ORDER: ("topk", "sort", "argsort"),
    _QUANTISED: ("quantize_per_tensor", "dequantize", "quantized::linear_dynamic", "quantized::linear"),
    _STEPS: ("round", "floor", "ceil", "trunc", "frac", "fmod", "remainder", "hardshrink"),
    RECURRENT: ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    _DISTANCE: ("cdist", "_cdist_forward", "_euclidean_dist", "pdist"),
    _BATCH: ("instance_norm",),
}  # fmt: skip
REFUSED = {name: why for why, names in _GROUPS.items() for name in names}
# Layers of torch that are refused as such: their operators alone would not say what they are part of.
REFUSED_LAYERS = {
    "torch.nn.modules.activation.MultiheadAttention": ATTENTION,
    "torch.nn.modules.rnn.": RECURRENT,
}


def writes_to(what: str) -> str:
    return (
        f"it writes to {what}: every row has one answer, whatever was asked before; leave it out in eval mode"
    )


def autocast(dtype: object) -> str:
    name = str(dtype).removeprefix("torch.")
    return (
        f"it computes in {name} inside torch.autocast, which is not read: leave the autocast out, and round the "
        f"weights with dtype={name!r}"
    )


def quantised(operator: str) -> str:
    return (
        f"it is quantised by pt2e ({operator}), which is not read: import the float model it was made from, with "
        "precision='int8'"
    )
