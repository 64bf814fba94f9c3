# SPDX-License-Identifier: Apache-2.0
"""ATen operators that are no step of an MLP, with a word on why and on what to do."""

from __future__ import annotations

# Refused with a word on why; every other operator that is in neither table is refused as unknown.
_BATCH = "its result depends on the rows of the batch, not on one row alone"
_CONVOLUTION = "a convolution is no step of an MLP: this server runs MLPs alone"
ATTENTION = "attention is no step of an MLP: import the feed-forward block alone, such as model.layers[0].mlp"
IDS = "it looks up rows of a table by category ids, which are not served yet: pass floats"
DROPS = "write F.dropout(x, p, self.training), or keep the module where eval() finds it"
_DISTANCE = (
    "a distance to points is no step of an MLP: write it out, (x * x).sum(-1) - 2 * x @ p.T + (p * p).sum(-1)"
)
RECURRENT = "a recurrent layer is no step of an MLP"
_RANDOM = "it draws random numbers: every row has one answer"
_ORDER = "it answers positions, or an order: answer the scores"
_QUANTISED = "quantised layers are not read: import the float model"
_STEPS = "a function with steps is no part of a formula"
_GROUPS: dict[str, tuple[str, ...]] = {
    _CONVOLUTION: (
        "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "max_pool1d",
        "max_pool2d", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    ),
    ATTENTION: ("scaled_dot_product_attention", "_native_multi_head_attention"),
    IDS: ("embedding", "embedding_bag", "one_hot", "gather", "bucketize", "searchsorted"),
    _RANDOM: ("rand_like", "randn_like", "bernoulli", "normal", "multinomial", "randint_like"),
    _ORDER: ("argmax", "argmin", "topk", "sort", "argsort"),
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
