"""The fast engine for one NVIDIA GPU."""

from fedfeat.engines.cuda.engine import CudaEngine

__all__ = ["CudaEngine"]
