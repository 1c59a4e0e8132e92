"""The fast engine for one NVIDIA GPU."""
