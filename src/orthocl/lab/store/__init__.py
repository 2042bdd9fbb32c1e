"""The store: records, the directory they live in, and the lock on a run."""
