"""One run: executing it, its checkpoints, several seeds at once."""
