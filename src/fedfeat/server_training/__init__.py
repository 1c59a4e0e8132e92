"""What a server trains by itself, on statistics that clients sent: heads and synthetic features."""
