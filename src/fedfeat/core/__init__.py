"""What everything rests on and what imports nothing of ours: payload, settings, errors, random streams, files."""
