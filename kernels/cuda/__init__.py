"""The fused kernel for NVIDIA GPUs: Triton programs and cuBLAS behind CUDA graphs. `backend` registers it;
only `functions`, the kernels, `triton_programs` and `check` import triton."""
