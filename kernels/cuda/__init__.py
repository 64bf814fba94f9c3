"""The fused kernel for NVIDIA GPUs: Triton programs and cuBLAS behind CUDA graphs. `backend` registers it;
only `activations`, `whole_kernel`, `layer_kernel`, `triton_programs` and `check` import triton."""
