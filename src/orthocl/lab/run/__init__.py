"""One run: execution, checkpoints, several seeds at once."""
