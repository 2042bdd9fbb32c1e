"""Searching for hyperparameters."""
