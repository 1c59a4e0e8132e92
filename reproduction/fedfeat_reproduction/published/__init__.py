"""The numbers that the paper prints, as files of comma-separated values, and how its names map to ours."""

from fedfeat_reproduction.published.values import ABLATION, BASELINES, STRATEGIES, TASKS, Entry, Value, read_entries

__all__ = ["ABLATION", "BASELINES", "STRATEGIES", "TASKS", "Entry", "Value", "read_entries"]
