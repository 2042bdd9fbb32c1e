"""The paper's experiments: its conventions, its printed numbers, its tables and figures."""
