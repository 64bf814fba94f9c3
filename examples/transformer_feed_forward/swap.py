"""Replaces the feed-forward blocks of a Llama-like transformer by fused kernels, and checks and times the result."""

import copy
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

import fused_mlp

CONFIG = LlamaConfig(
    vocab_size=1000,
    hidden_size=512,
    intermediate_size=1376,
    num_hidden_layers=2,
    num_attention_heads=8,
)


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def show_times(what: str, plain: Callable[[], object], fused: Callable[[], object]) -> None:
    """Medians of calls in turns, so that whatever else the machine does slows both."""
    plain(), fused()
    times = [(seconds(plain), seconds(fused)) for _ in range(20)]
    old, new = (1e6 * median(each) for each in zip(*times, strict=True))
    print(f"  {what}: {old:,.0f} us, fused {new:,.0f} us, {old / new:.1f}x")


def compare(model: LlamaModel, fused: LlamaModel, tokens: Tensor) -> None:
    """Both models on the same tokens: (sequences, length)."""
    expected, got = model(tokens).last_hidden_state, fused(tokens).last_hidden_state
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    print(f"{tokens.numel()} token(s): largest difference {(got - expected).abs().max():.1e}")
    hidden = torch.randn(*tokens.shape, CONFIG.hidden_size)
    block, fused_block = model.layers[0].mlp, fused.layers[0].mlp
    show_times("one feed-forward block", lambda: block(hidden), lambda: fused_block(hidden))
    show_times("the whole model", lambda: model(tokens), lambda: fused(tokens))


torch.manual_seed(0)
torch.set_num_threads(1)  # the fused blocks take as many as torch
model = LlamaModel(CONFIG).eval()  # random weights; `from_pretrained` works alike
fusion = fused_mlp.fuse_mlps(copy.deepcopy(model))  # in place: the copy is only for the comparison
for path, block in fusion.replaced.items():
    print(f"replaced {path}: {block}")
print(f"kept: {', '.join(fusion.kept)}")  # path -> why not; print(fusion) shows all of it
with torch.inference_mode():
    for length in (1, 16):
        compare(model, fusion.model, torch.randint(0, CONFIG.vocab_size, (1, length)))
