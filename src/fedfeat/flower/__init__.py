"""fedfeat across machines: the only package that imports Flower."""
