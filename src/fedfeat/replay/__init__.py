"""Exemplars: what stays of a finished task."""
