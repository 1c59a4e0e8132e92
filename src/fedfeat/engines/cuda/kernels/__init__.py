"""Kernels of our own for NVIDIA GPUs, written in Triton, which comes with PyTorch there."""
