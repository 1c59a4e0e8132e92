"""What a method is made of and what it sees: its parts, a client, the server, the end of a task, the engine."""
