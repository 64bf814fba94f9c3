# SPDX-License-Identifier: Apache-2.0
"""Modules of public packages, unmodified: transformers, tabular learning (rtdl), reinforcement learning
(stable-baselines3). Where a module takes its residual as a second argument, the few lines around it are those of its
package. The packages are imported when a module is made."""

from __future__ import annotations

from importlib import import_module

from torch import nn

from tests.models.zoo.entry import model

_SMALL = {"hidden_size": 16, "intermediate_size": 40, "num_attention_heads": 2, "num_hidden_layers": 1}


def transformers(path, config, **fields):
    """A module of `transformers.models.<path>` made with a small config."""
    module, _, name = path.rpartition(".")
    made = import_module(f"transformers.models.{module}")
    configs = import_module(f"transformers.models.{module.replace('modeling', 'configuration')}")
    return getattr(made, name)(getattr(configs, config)(**fields))


_TRANSFORMERS = {
    "LlamaMLP": ("llama.modeling_llama", "LlamaConfig", _SMALL),
    "MistralMLP": ("mistral.modeling_mistral", "MistralConfig", _SMALL),
    "Qwen2MLP": ("qwen2.modeling_qwen2", "Qwen2Config", _SMALL),
    "GemmaMLP": ("gemma.modeling_gemma", "GemmaConfig", _SMALL),
    "Phi3MLP": ("phi3.modeling_phi3", "Phi3Config", {**_SMALL, "pad_token_id": 0}),
    "PhiMLP": ("phi.modeling_phi", "PhiConfig", _SMALL),
    "GPTNeoXMLP": ("gpt_neox.modeling_gpt_neox", "GPTNeoXConfig", _SMALL),
    "FalconMLP": ("falcon.modeling_falcon", "FalconConfig", {"hidden_size": 16, "num_attention_heads": 2}),
    "ViTMLP": ("vit.modeling_vit", "ViTConfig", _SMALL),
    "CLIPMLP": ("clip.modeling_clip", "CLIPTextConfig", {**_SMALL, "vocab_size": 49408}),
    "SiglipMLP": ("siglip.modeling_siglip", "SiglipTextConfig", _SMALL),
    "BertPredictionHeadTransform": ("bert.modeling_bert", "BertConfig", _SMALL),
    "RobertaLMHead": ("roberta.modeling_roberta", "RobertaConfig", {**_SMALL, "vocab_size": 50}),
    "FFN": (
        "distilbert.modeling_distilbert",
        "DistilBertConfig",
        {"dim": 16, "hidden_dim": 40, "n_heads": 2},
    ),
    "T5DenseActDense": ("t5.modeling_t5", "T5Config", {"d_model": 16, "d_ff": 40}),
    "T5DenseGatedActDense": (
        "t5.modeling_t5",
        "T5Config",
        {"d_model": 16, "d_ff": 40, "feed_forward_proj": "gated-gelu"},
    ),
    "T5LayerFF": (
        "t5.modeling_t5",
        "T5Config",
        {"d_model": 16, "d_ff": 40, "feed_forward_proj": "gated-gelu"},
    ),
}
for _name, (_module, _config, _fields) in _TRANSFORMERS.items():
    model(16, name=f"transformers {_name}")(
        lambda path=f"{_module}.{_name}", config=_config, fields=_fields: transformers(path, config, **fields)
    )


@model(16, name="transformers GPT2MLP")
def gpt2_mlp():
    made = import_module("transformers.models.gpt2.modeling_gpt2")
    return made.GPT2MLP(40, import_module("transformers").GPT2Config(n_embd=16, n_head=2))


@model(16, name="transformers BertIntermediate and BertOutput")
def bert_feed_forward():
    class FeedForward(nn.Module):
        def __init__(self):
            super().__init__()
            self.intermediate = transformers("bert.modeling_bert.BertIntermediate", "BertConfig", **_SMALL)
            self.output = transformers("bert.modeling_bert.BertOutput", "BertConfig", **_SMALL)

        def forward(self, attention_output):
            return self.output(self.intermediate(attention_output), attention_output)

    return FeedForward()


@model(16, name="transformers BloomMLP")
def bloom_mlp():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.post_attention_layernorm = nn.LayerNorm(16)
            self.mlp = transformers("bloom.modeling_bloom.BloomMLP", "BloomConfig", hidden_size=16, n_head=2)

        def forward(self, x):
            return self.mlp(self.post_attention_layernorm(x), x)

    return Block()


@model(16, name="transformers OPTDecoderLayer's feed-forward")
def opt_feed_forward():
    config = {"hidden_size": 16, "ffn_dim": 40, "num_attention_heads": 2, "word_embed_proj_dim": 16}

    class FeedForward(nn.Module):
        def __init__(self):
            super().__init__()
            layer = import_module("transformers.models.opt.modeling_opt").OPTDecoderLayer(
                import_module("transformers").OPTConfig(**config), layer_idx=0
            )
            self.final_layer_norm, self.activation_fn = layer.final_layer_norm, layer.activation_fn
            self.fc1, self.fc2 = layer.fc1, layer.fc2

        def forward(self, hidden_states):
            residual = hidden_states
            hidden_states = self.final_layer_norm(hidden_states)
            return residual + self.fc2(self.activation_fn(self.fc1(hidden_states)))

    return FeedForward()


@model(16, name="transformers LlamaRMSNorm and LlamaMLP")
def llama_block():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = import_module("transformers.models.llama.modeling_llama").LlamaRMSNorm(16)
            self.mlp = transformers("llama.modeling_llama.LlamaMLP", "LlamaConfig", **_SMALL)

        def forward(self, x):
            return x + self.mlp(self.norm(x))

    return Block()


@model(9, name="rtdl MLP")
def rtdl_mlp():
    return import_module("rtdl_revisiting_models").MLP(d_in=9, d_out=2, n_blocks=3, d_block=24, dropout=0.1)


@model(9, name="rtdl ResNet")
def rtdl_resnet():
    return import_module("rtdl_revisiting_models").ResNet(
        d_in=9,
        d_out=1,
        n_blocks=2,
        d_block=24,
        d_hidden=None,
        d_hidden_multiplier=2.0,
        dropout1=0.15,
        dropout2=0.0,
    )


@model(5, name="rtdl LinearReLUEmbeddings and MLP", example=True)
def rtdl_linear_embeddings():
    embeddings = import_module("rtdl_num_embeddings").LinearReLUEmbeddings(5, 4)
    mlp = import_module("rtdl_revisiting_models").MLP(d_in=20, d_out=1, n_blocks=1, d_block=8, dropout=0.0)
    return nn.Sequential(embeddings, nn.Flatten(), mlp)


@model(5, name="rtdl PeriodicEmbeddings and MLP", example=True)
def rtdl_periodic_embeddings():
    embeddings = import_module("rtdl_num_embeddings").PeriodicEmbeddings(5, 4, lite=False)
    mlp = import_module("rtdl_revisiting_models").MLP(d_in=20, d_out=1, n_blocks=1, d_block=8, dropout=0.0)
    return nn.Sequential(embeddings, nn.Flatten(), mlp)


def _spaces(observations, actions):
    spaces = import_module("gymnasium.spaces")
    return spaces.Box(-5, 5, (observations,)), spaces.Box(-2, 2, (actions,))


@model(6, name="stable-baselines3 MlpExtractor")
def sb3_extractor():
    layers = import_module("stable_baselines3.common.torch_layers")
    return layers.MlpExtractor(6, {"pi": [16, 16], "vf": [12]}, nn.Tanh, device="cpu")


@model(6, name="stable-baselines3 DQN QNetwork")
def sb3_q_network():
    layers = import_module("stable_baselines3.common.torch_layers")
    observations, _ = _spaces(6, 1)
    actions = import_module("gymnasium.spaces").Discrete(3)
    extractor = layers.FlattenExtractor(observations)
    return import_module("stable_baselines3.dqn.policies").QNetwork(
        observations, actions, extractor, 6, [16, 16]
    )


@model(6, name="stable-baselines3 TD3 Actor")
def sb3_td3_actor():
    layers = import_module("stable_baselines3.common.torch_layers")
    observations, actions = _spaces(6, 2)
    extractor = layers.FlattenExtractor(observations)
    return import_module("stable_baselines3.td3.policies").Actor(
        observations, actions, [16, 16], extractor, 6
    )


# torch.export does not get past the check of its arguments in torch.distributions.
@model(
    6, name="stable-baselines3 ActorCriticPolicy", refused="depends on the values|broadcast_tensors", gap=True
)
def sb3_actor_critic():
    observations, actions = _spaces(6, 2)
    made = import_module("stable_baselines3.common.policies").ActorCriticPolicy(
        observations, actions, lambda _: 1e-3
    )

    class OnnxablePolicy(nn.Module):
        """As its documentation exports a policy."""

        def __init__(self, policy):
            super().__init__()
            self.policy = policy

        def forward(self, observation):
            action, value, _ = self.policy(observation, deterministic=True)
            return action, value

    return OnnxablePolicy(made)
