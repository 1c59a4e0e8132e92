"""One accuracy matrix; every metric is a function of it."""
