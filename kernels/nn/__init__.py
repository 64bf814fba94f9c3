"""The fused kernel as an `nn.Module` and an operator of torch."""
