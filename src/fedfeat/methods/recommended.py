"""The composition that this project recommends, under a name of its own.

FedCBDR chooses the exemplars, the classifier is a fixed ETF, the loss allows for how rare old classes are, and the
model that the previous task ended with teaches them. Nothing is corrected at prediction. ``--recipe fedfeat`` adds
weight decay and number of rounds.
"""

from __future__ import annotations

from fedfeat.algorithm.registry import composition

composition("fedfeat", "fedcbdr+etf+balanced+distil", "The recommended composition: fedcbdr+etf+balanced+distil")
