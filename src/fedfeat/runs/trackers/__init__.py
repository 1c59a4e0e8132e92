"""Copies of a run's numbers in TensorBoard, Weights & Biases and MLflow; the files of the run remain the truth."""
