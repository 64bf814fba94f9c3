# SPDX-License-Identifier: Apache-2.0
"""`fused_mlp.fuse_mlps` on models of transformers."""

import copy

import pytest
import torch

import fused_mlp
from tests.models.zoo.packages import install_packages


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ["Llama", "T5"])
def test_outputs_of_a_transformers_model_stay_as_they_are(kind):
    reason = install_packages()
    if reason:
        pytest.skip(reason)
    import transformers

    torch.manual_seed(0)
    if kind == "Llama":
        config = transformers.LlamaConfig(
            vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
        )
        model = transformers.LlamaModel(config).eval()
        expected = ["layers.0.mlp", "layers.1.mlp"]
    else:  # the whole layer: norm, gated block, residual
        config = transformers.T5Config(
            vocab_size=50,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=1,
            num_heads=4,
            feed_forward_proj="gated-gelu",
        )
        model = transformers.T5EncoderModel(config).eval()
        expected = ["encoder.block.0.layer.1"]
    twin = copy.deepcopy(model)
    fusion = fused_mlp.fuse_mlps(model)
    assert list(fusion.replaced) == expected
    ids = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        got, wanted = model(input_ids=ids)[0], twin(input_ids=ids)[0]
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
