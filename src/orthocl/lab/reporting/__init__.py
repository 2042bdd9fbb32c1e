"""What people see of runs: progress, tables, figures, the report page, trackers."""
