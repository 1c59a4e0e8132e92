"""Images made by the server from a frozen model alone: generators, the losses that guide them, the pool they fill."""
