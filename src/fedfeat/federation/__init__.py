"""The loop, the exchange, a client, the server, checkpoints and events."""
