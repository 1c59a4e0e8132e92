"""Secure aggregation: replies as integers that add up, masks that cancel in the sum, and the exchange that opens it."""
