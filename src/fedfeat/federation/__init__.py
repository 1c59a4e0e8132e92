"""The loop, the exchange, local training, the average, evaluation, metrics, privacy and secure aggregation."""
