"""What is to be run: experiment files, grids, settings of runs."""
