"""fedfeat: federated class-incremental learning, from a simplex ETF to a running federation."""

__version__ = "0.1.0"
