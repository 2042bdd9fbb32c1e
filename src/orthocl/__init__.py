"""Continual learning by orthogonal projection."""
