"""Re-Fed+: exemplars by the gradients of a personalised model."""

from fedfeat.methods.refed import refed as refed
