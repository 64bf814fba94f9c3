"""What runs on the GPU, in Triton's dialect of Python."""
